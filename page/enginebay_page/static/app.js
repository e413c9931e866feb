// The page: what is on it, and what hears of what.

import { Chat } from "./chat/chat.js";
import { keyDialog } from "./key_dialog.js";
import { Manager } from "./models/manager.js";
import { Status } from "./status/status.js";
import { Usage } from "./usage/usage.js";
import { views } from "./views.js";

const askForKey = keyDialog(() => {
  status.newKey();
  usage.newKey();
});
const chat = new Chat({ askForKey, changed: () => status.refresh() });
const manager = new Manager({ chosenModel: () => chat.model, changed: () => status.refresh() });
const usage = new Usage();
const status = new Status({
  described: (catalog) => {
    chat.offer(catalog);
    manager.allow(catalog.admin);
    usage.allow(catalog.admin);
  },
  follow: (models, catalog) => {
    chat.follow(models);
    manager.show(catalog.everything(models));
  },
  askForKey,
});

views((name) => {
  if (name === "models") {
    status.refresh();
    manager.open();
  }
  if (name === "usage") usage.refresh();
});
