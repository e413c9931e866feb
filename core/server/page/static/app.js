// The page: what is on it, and what hears of what.

import { Chat } from "./chat/chat.js";
import { keyDialog } from "./key_dialog.js";
import { Status } from "./status/status.js";

const askForKey = keyDialog(() => status.newKey());
const chat = new Chat({ askForKey });
const status = new Status({
  offer: (cards) => chat.offer(cards),
  follow: (models) => chat.follow(models),
  chosenModel: () => chat.model,
  askForKey,
});

function showView() {
  const view = location.hash === "#status" ? "status" : "chat";
  document.body.dataset.view = view;
  for (const link of document.querySelectorAll("nav a")) {
    link.ariaCurrent = link.hash === `#${view}` ? "page" : null;
  }
}

addEventListener("hashchange", showView);
showView();
