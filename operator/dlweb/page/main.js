// The page: its three views, and the fragment of its address, which says what is shown.
import { Component, render } from "./vendor/preact.js";
import { Jobs } from "./jobs.js";
import { Lanes } from "./lanes.js";
import { Usage } from "./usage.js";
import { data, html, lanes, writeInstant } from "./view.js";

const VIEWS = { lanes: ["GPUs over time", Lanes], jobs: ["Jobs", Jobs], usage: ["Where GPU time went", Usage] };

function readPlace() {
  const place = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return { ...place, view: Object.hasOwn(VIEWS, place.view || "") ? place.view : "lanes", by: place.by === "namespace" ? "namespace" : "job" };
}

class Page extends Component {
  constructor(props) {
    super(props);
    this.state = { place: readPlace() };
    window.addEventListener("hashchange", () => this.setState({ place: readPlace(), visit: (this.state.visit || 0) + 1 }));
  }

  // Shows something else; the address says what, so that it can be sent to others.
  go(change, isVisit) {
    const place = { ...readPlace(), ...change };
    const fragment = `#${new URLSearchParams(place)}`;
    history[isVisit ? "pushState" : "replaceState"](null, "", fragment);
    this.setState({ place });
  }

  render(_, { place, visit }) {
    const [, View] = VIEWS[place.view];
    const open = (job) => this.go({ view: "jobs", job }, true);
    const facts = [data.source, data.policy && `policy ${data.policy}`, `${lanes.length} GPUs`, `${data.jobs.length} jobs`, `${writeInstant(0)} to ${writeInstant(data.length)}`];
    return html`<header>
        <h1>${data.title || "GPUs over time"}</h1>
        <p class="quiet">${facts.filter(Boolean).join(" · ")}</p>
        ${data.missing.map((sentence) => html`<p class="missing">Not complete: ${sentence}.</p>`)}
        <nav aria-label="Views">${Object.entries(VIEWS).map(([key, [name]]) => html`<button aria-current=${key === place.view ? "page" : null} onClick=${() => this.go({ view: key }, true)}>${name}</button>`)}</nav>
      </header>
      <main><${View} key=${`${place.view} ${visit}`} place=${place} go=${(change) => this.go(change)} open=${open} /></main>`;
  }
}

render(html`<${Page} />`, document.getElementById("page"));
