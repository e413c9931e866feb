// Dark or light. No module, since it runs before anything is drawn: the page does not flash.

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
  const apply = () => (document.documentElement.dataset.theme = theme);

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
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme-button");
    showSwitch(button);
    button.addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      apply();
      keep();
      showSwitch(button);
    });
  });
}
