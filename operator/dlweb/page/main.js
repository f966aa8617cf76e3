// The page: its views, and the fragment of its address, which says what is shown.
import { Component, createRef, render } from "./vendor/preact.js";
import { Jobs } from "./jobs.js";
import { Lanes } from "./lanes.js";
import { Following, keepToken, setToken } from "./live.js";
import { Now } from "./now.js";
import { Usage } from "./usage.js";
import { data, html, lanes, take, writeInstant } from "./view.js";
import { WhatIf } from "./whatif.js";

const embedded = document.getElementById("data");

const VIEWS = {
  lanes: ["GPUs over time", Lanes],
  // A file does not know what is now.
  ...(embedded ? {} : { now: ["Now", Now] }),
  jobs: ["Jobs", Jobs],
  usage: ["Where GPU time went", Usage],
  ...(embedded ? {} : { whatif: ["What if", WhatIf] }),
};

function readPlace() {
  const place = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return { ...place, view: Object.hasOwn(VIEWS, place.view || "") ? place.view : "lanes", by: place.by === "namespace" ? "namespace" : "job" };
}

class Page extends Component {
  constructor(props) {
    super(props);
    this.state = { place: readPlace(), isReady: !props.live, problem: null, news: { later: 0 } };
    if (props.live) {
      this.following = new Following((told) => this.hear(told));
      this.following.look();
    }
    window.addEventListener("hashchange", () => {
      if (props.live && location.hash.includes("token=")) {
        keepToken();
        this.following.look();
      }
      this.setState({ place: readPlace(), visit: (this.state.visit || 0) + 1 });
    });
  }

  hear({ problem, isRefused = false, later = null, at }) {
    if (problem !== null) {
      this.setState({ problem, isRefused });
    } else {
      document.title = `${data.title}: GPUs over time`;
      this.setState({ problem, isRefused, at, isReady: true, ...(later === null ? {} : { news: { later } }) });
    }
  }

  // Shows something else; the address says what, so that it can be sent to others.
  go(change, isVisit) {
    const place = { ...readPlace(), ...change };
    const fragment = `#${new URLSearchParams(place)}`;
    history[isVisit ? "pushState" : "replaceState"](null, "", fragment);
    this.setState({ place });
  }

  render({ live }, { place, visit, isReady, problem, isRefused, news, at }) {
    const trouble = problem === null ? null : html`<p class="missing" role="alert">${problem}</p>`;
    if (!isReady || isRefused) {
      return html`<header><h1>GPUs over time</h1></header><main>${trouble || html`<p role="status">Asks for what happened …</p>`}
        ${isRefused ? html`<${Asking} done=${(token) => { setToken(token); this.following.look(); }} />` : null}</main>`;
    }
    const [, View] = VIEWS[place.view];
    const open = (job) => this.go({ view: "jobs", job }, true);
    const facts = [data.source, data.policy && `policy ${data.policy}`, `${lanes.length} GPUs`, `${data.jobs.length} jobs`, `${writeInstant(0)} to ${writeInstant(data.length)}`,
      live && at && `looked ${new Date(at).toLocaleTimeString()}`];
    return html`<header>
        <h1>${data.title || "GPUs over time"}</h1>
        <p class="quiet">${facts.filter(Boolean).join(" · ")}</p>
        ${trouble}
        ${data.missing.map((sentence) => html`<p class="missing">Not complete: ${sentence}.</p>`)}
        <nav aria-label="Views">${Object.entries(VIEWS).map(([key, [name]]) => html`<button aria-current=${key === place.view ? "page" : null} onClick=${() => this.go({ view: key }, true)}>${name}</button>`)}</nav>
      </header>
      <main><${View} key=${`${place.view} ${visit}`} place=${place} news=${news} at=${at} go=${(change) => this.go(change)} open=${open} /></main>`;
  }
}

// Asks for the token, where the address came without it.
class Asking extends Component {
  constructor(props) {
    super(props);
    this.field = createRef();
  }

  render({ done }) {
    return html`<form onSubmit=${(event) => { event.preventDefault(); done(this.field.current.value); }}>
      <label>Token <input ref=${this.field} type="password" autocomplete="off" required /></label> <button>Look</button></form>`;
  }
}

if (embedded) take(JSON.parse(embedded.textContent));
else keepToken();
render(html`<${Page} live=${!embedded} />`, document.getElementById("page"));
