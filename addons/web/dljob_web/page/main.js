// The page: its views, and the fragment of its address, which says what is shown.
import { Component, createRef, render } from "./vendor/preact.js";
import { Jobs } from "./jobs.js";
import { Lanes } from "./lanes.js";
import { Following, hasLogin, hearOtherTabs, keepToken, logIn, logOut } from "./live.js";
import { Now } from "./now.js";
import { Usage } from "./usage.js";
import { data, forget, html, lanes, take, writeInstant } from "./view.js";
import { WhatIf } from "./whatif.js";

const TITLE = "GPUs over time";

// Beyond this number the page lists what the record lacks where a viewer asks for it.
const MOST_MISSING = 3;

const embedded = document.getElementById("data");

const VIEWS = {
  lanes: [TITLE, Lanes],
  // A file does not know what is now.
  ...(embedded ? {} : { now: ["Now", Now] }),
  jobs: ["Jobs", Jobs],
  usage: ["Where GPU time went", Usage],
  // A file has no scheduler that plays futures.
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
      hearOtherTabs(() => {
        this.clear();
        this.following.start();
      });
    }
    window.addEventListener("hashchange", () => {
      if (props.live && location.hash.includes("token=")) {
        keepToken();
        this.following.start();
      }
      this.setState({ place: readPlace(), visit: (this.state.visit || 0) + 1 });
    });
  }

  hear({ problem, isEmpty = false, isRefused = false, later = null, at }) {
    if (isEmpty) {
      this.clear({ problem, isRefused });
    } else if (problem !== null) {
      this.setState({ problem, isRefused });
    } else {
      document.title = `${data.title}: ${TITLE}`;
      this.setState({ problem, isRefused, at, isReady: true, ...(later === null ? {} : { news: { later } }) });
    }
  }

  // Shows nothing of what was shown, which the user of this moment may not see.
  clear(change = {}) {
    document.title = TITLE;
    // Forgotten after the views are gone, because they draw at any time.
    this.setState({ problem: null, isRefused: false, at: null, ...change, isReady: false }, () => {
      if (!this.state.isReady) forget();
    });
  }

  async logIn(token) {
    this.following.stop();
    this.setState({ hasTried: true });
    try {
      await logIn(token);
      this.following.start();
    } catch (error) {
      this.setState({ problem: error.message, isRefused: true });
    }
  }

  async logOut() {
    this.following.stop();
    this.clear();
    // The address names what this user has looked at.
    const { view, by } = readPlace();
    history.replaceState(null, "", `#${new URLSearchParams({ view, by })}`);
    this.setState({ place: readPlace(), hasTried: false });
    try {
      await logOut();
      this.following.start();
    } catch (error) {
      this.setState({ problem: `You are still logged in. ${error.message}` });
    }
  }

  // Shows something else; the address says what, so that it can be sent to others.
  go(change, isVisit) {
    const place = { ...readPlace(), ...change };
    if (!place.job) delete place.job;
    const fragment = `#${new URLSearchParams(place)}`;
    history[isVisit ? "pushState" : "replaceState"](null, "", fragment);
    this.setState({ place });
  }

  render({ live }, { place, visit, isReady, problem, isRefused, hasTried, news, at }) {
    // A user who has not logged in yet has done nothing wrong.
    const trouble = problem === null ? null : html`<p class=${isRefused && hasLogin && !hasTried ? "quiet" : "missing"} role="alert">${problem}</p>`;
    const isForbidden = hasLogin && problem !== null && !isRefused;
    if (!isReady || isRefused) {
      return html`<header><h1>${TITLE}</h1></header><main>${trouble || html`<p role="status">Asks for what happened …</p>`}
        ${isRefused ? html`<${Asking} done=${(token) => this.logIn(token)} />` : null}
        ${isForbidden ? html`<${LogOut} done=${() => this.logOut()} />` : null}</main>`;
    }
    const [, View] = VIEWS[place.view];
    const open = (job) => this.go({ view: "jobs", job }, true);
    const facts = [data.source, data.policy && `policy ${data.policy}`, `${lanes.length} GPUs`, `${data.jobs.length} jobs`, `${writeInstant(0)} to ${writeInstant(data.length)}`,
      live && at && `looked ${new Date(at).toLocaleTimeString()}`];
    return html`<header>
        <h1>${data.title || TITLE}</h1>
        <p class="quiet">${facts.filter(Boolean).join(" · ")}</p>
        ${trouble}
        <${Missing} sentences=${data.missing} />
        ${hasLogin ? html`<${LogOut} done=${() => this.logOut()} />` : null}
        <nav aria-label="Views">${Object.entries(VIEWS).map(([key, [name]]) => html`<button aria-current=${key === place.view ? "page" : null} onClick=${() => this.go({ view: key, job: null }, true)}>${name}</button>`)}</nav>
      </header>
      <main><${View} key=${`${place.view} ${visit}`} place=${place} news=${news} at=${at} go=${(change) => this.go(change)} open=${open} /></main>`;
  }
}

// Of many jobs the record lacks something; their sentences would leave no room for the views.
function Missing({ sentences }) {
  const lines = sentences.map((sentence) => html`<p class="missing">Not complete: ${sentence}.</p>`);
  if (sentences.length <= MOST_MISSING) return lines;
  return html`${lines.slice(0, MOST_MISSING - 1)}
    <details><summary class="missing">Not complete for ${sentences.length - MOST_MISSING + 1} more reasons</summary>${lines.slice(MOST_MISSING - 1)}</details>`;
}

// Asks for the token, where the address came without it.
class Asking extends Component {
  constructor(props) {
    super(props);
    this.field = createRef();
  }

  render({ done }) {
    return html`<form onSubmit=${(event) => { event.preventDefault(); done(this.field.current.value); }}>
      <label>${hasLogin ? "Your Kubernetes token" : "Token"} <input ref=${this.field} type="password" autocomplete="off" required /></label> <button>${hasLogin ? "Log in" : "Look"}</button></form>`;
  }
}

function LogOut({ done }) {
  return html`<p class="account"><button class="link" onClick=${done}>Log out</button></p>`;
}

if (embedded) take(JSON.parse(embedded.textContent));
else keepToken();
render(html`<${Page} live=${!embedded} />`, document.getElementById("page"));
