// Dark or light, of the page and of the documentation. No module, since it runs before anything is
// drawn: nothing flashes.

{
  const NAME = "enginebay-theme";
  const THEMES = ["auto", "light", "dark"];

  const stored = () => {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // storage is off
    }
  };
  let theme = THEMES.includes(stored()) ? stored() : "auto";
  const device = matchMedia("(prefers-color-scheme: dark)");

  function apply() {
    const root = document.documentElement;
    root.dataset.theme = theme;
    // What Swagger UI's style sheet looks for.
    root.classList.toggle("dark-mode", theme === "dark" || (theme === "auto" && device.matches));
  }

  function keep() {
    try {
      if (theme === "auto") localStorage.removeItem(NAME);
      else localStorage.setItem(NAME, theme);
    } catch {
      // then it is for this time only
    }
  }

  function showSwitch(button) {
    button.textContent = `Theme: ${theme}`;
    button.title = { auto: "As the device has it", light: "Always light", dark: "Always dark" }[theme];
  }

  apply();
  device.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme-button");
    if (!button) return; // the documentation has none
    showSwitch(button);
    button.addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      apply();
      keep();
      showSwitch(button);
    });
  });
}
