// The view of the models for admins: what is there, what can be had, and the config.

import { byId } from "../dom.js";
import { apiKey } from "../store.js";
import { Cluster } from "./cluster.js";
import { DownloadForm } from "./download_form.js";
import { Downloads } from "./downloads.js";
import { Hub } from "./hub.js";
import { ModelList } from "./list.js";
import { Loras } from "./loras.js";
import { Reload } from "./reload.js";

/** `changed()`: the server has other models now; `chosenModel()`: the one of the chat. */
export class Manager {
  constructor({ chosenModel, changed }) {
    this.admin = false;
    this.models = [];
    this.list = new ModelList(byId("all-models"), { memory: true });
    this.cluster = new Cluster();
    this.downloads = new Downloads({ done: changed });
    const download = (body, title) => this.downloads.start(body, title);
    this.hub = new Hub({ download });
    this.form = new DownloadForm({ download });
    this.loras = new Loras({ chosenModel });
    this.reload = new Reload({ done: changed });
    byId("model-filter").addEventListener("input", () => this.#show());
  }

  /** Whether this is for the user. Who has no key yet may have one for it. */
  allow(admin) {
    this.admin = admin;
    byId("models-link").hidden = !admin && Boolean(apiKey.value);
    byId("models-refused").hidden = admin;
    for (const part of document.querySelectorAll(".for-admins")) part.hidden = !admin;
    this.cluster.allow(admin);
  }

  /** The view is looked at. */
  open() {
    this.cluster.refresh();
  }

  /** The models as they are now. */
  show(models) {
    this.models = models;
    this.#show();
  }

  #show() {
    const models = this.models.map((each) => ({ ...each, inCluster: this.cluster.has(each.id) }));
    this.list.show(models, this.admin, byId("model-filter").value);
  }
}
