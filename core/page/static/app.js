// The page: what is on it, and what hears of what.

import { json } from "./api.js";
import { Chat } from "./chat/chat.js";
import { byId, setText } from "./dom.js";
import { keyDialog } from "./key_dialog.js";
import { Activity } from "./status/activity.js";
import { History } from "./status/history.js";
import { ModelCards } from "./status/models.js";
import { poll } from "./status/poll.js";

const openKeyDialog = keyDialog(() => {
  asked = false;
  stats.now();
});
const chat = new Chat(openKeyDialog);
const history = new History();
const activity = new Activity();
const cards = new ModelCards({ failed: (error) => showHealth("failed", error.message) });

let described = []; // the cards of /v1/models
let states = null;
let asked = false; // for a key; once is enough, the button is there

async function ask() {
  try {
    const stats = await json("v1/stats");
    const now = JSON.stringify(stats.models.map(({ id, state }) => [id, state]));
    if (now !== states) {
      described = (await json("v1/models")).data;
      chat.offer(described.map((card) => card.id));
      states = now;
    }
    history.add(stats);
    activity.show(history);
    cards.show(stats.models, described);
    showHealth(...healthOf(stats.models));
  } catch (error) {
    showHealth("failed", error.status === 401 ? "needs a key" : error.message);
    if (error.status === 401 && !asked) openKeyDialog(error.message);
    asked ||= error.status === 401;
  }
}

function healthOf(models) {
  const count = (state) => models.filter((model) => model.state === state).length;
  const ready = count("ready");
  if (count("loading")) return ["loading", `${count("loading")} loading, ${ready} ready`];
  if (count("failed")) return ["failed", `${count("failed")} failed, ${ready} ready`];
  return ["ready", ready === 1 ? "1 model ready" : `${ready} models ready`];
}

function showHealth(state, words) {
  byId("health").dataset.state = state;
  setText(byId("health"), words);
}

function showView() {
  const view = location.hash === "#status" ? "status" : "chat";
  document.body.dataset.view = view;
  for (const link of document.querySelectorAll("nav a")) {
    link.ariaCurrent = link.hash === `#${view}` ? "page" : null;
  }
}

addEventListener("hashchange", showView);
showView();
const stats = poll(ask, 1);
