// The view of this moment: a map of all GPUs by node, and the queue in the order of its turns. Of live pages only.
import { Component } from "./vendor/preact.js";
import { ask, isRefusal } from "./live.js";
import { colourOf, html, numberOfJob, writeLength } from "./view.js";

const STATES = { free: "idle", "in use": "in use", reserved: "reserved", held: "held by other jobs", unavailable: "out of service" };

export class Now extends Component {
  constructor(props) {
    super(props);
    this.state = { nodes: null, queue: [], problem: null };
    this.look();
  }

  componentWillReceiveProps({ at }) {
    if (at !== this.props.at) this.look();
  }

  componentWillUnmount() {
    this.isGone = true;
  }

  async look() {
    this.looks = (this.looks || 0) + 1;
    const { looks } = this;
    let found;
    try {
      const [nodes, queue] = await Promise.all(["nodes", "queue"].map(async (path) => (await (await ask(`/api/v1/${path}`)).json()).items));
      // As people count: node-2 comes before node-10.
      nodes.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
      found = { nodes, queue, problem: null };
    } catch (error) {
      found = { problem: error.message, ...(isRefusal(error) ? { nodes: null, queue: [] } : {}) };
    }
    // An answer that a later question has overtaken does not count.
    if (!this.isGone && looks === this.looks) this.setState(found);
  }

  render({ open }, { nodes, queue, problem }) {
    const trouble = problem === null ? null : html`<p class="missing" role="alert">${problem}</p>`;
    if (nodes === null) return trouble || html`<p role="status">Asks for the GPUs …</p>`;
    const gpus = nodes.flatMap((node) => node.gpus);
    const count = (state) => gpus.filter((gpu) => gpu.state === state).length;
    const sums = Object.entries(STATES).map(([state, name]) => [count(state), name]).filter(([number]) => number);
    return html`<section>${trouble}
      <h2>${gpus.length} GPUs: ${sums.map(([number, name]) => `${number} ${name}`).join(", ")}</h2>
      <div class="map">${nodes.map((node) => html`<${Node} key=${node.name} node=${node} open=${open} isWaited=${queue.length > 0} />`)}</div>
      <h2>${queue.length ? `${queue.length} ${queue.length === 1 ? "job waits" : "jobs wait"}` : "No job waits"}</h2>
      ${queue.length ? html`<${Queue} queue=${queue} open=${open} />` : null}
    </section>`;
  }
}

// Lets the style of an element use the colour that the job has in all views.
const paintAs = (job) => (element) => {
  const number = numberOfJob(job);
  if (element) element.style.setProperty("--job", number < 0 ? "var(--line)" : colourOf(number, "job"));
};

function Node({ node, open, isWaited }) {
  const jobs = [...new Set(node.gpus.map((gpu) => gpu.job).filter(Boolean))];
  return html`<section class="node" aria-label=${node.name}><h3>${node.name} <span class="quiet">${node.gpuType}</span></h3>
    <ul>${node.gpus.map((gpu) => html`<li key=${gpu.index}><${Gpu} gpu=${gpu} open=${open} isWaited=${isWaited} /></li>`)}</ul>
    ${jobs.map((job) => html`<p><i class="key" ref=${paintAs(job)}></i><button class="link" onClick=${() => open(job)}>${job}</button></p>`)}</section>`;
}

function Gpu({ gpu, open, isWaited }) {
  const state = gpu.state === "held" ? "held by another job" : STATES[gpu.state] || gpu.state;
  const told = [`GPU ${gpu.index}: ${state}`, gpu.job, gpu.reason].filter(Boolean).join(", ");
  if (!gpu.job) return html`<span class=${`gpu ${gpu.state}${isWaited && gpu.state === "free" ? " waited" : ""}`} role="img" aria-label=${told} title=${told}></span>`;
  return html`<button class=${`gpu ${gpu.state}`} aria-label=${told} title=${told} onClick=${() => open(gpu.job)} ref=${paintAs(gpu.job)}></button>`;
}

function Queue({ queue, open }) {
  const now = Date.now();
  const link = (job) => html`<button class="link" onClick=${() => open(job)}>${job}</button>`;
  return html`<div class="wide"><table>
    <thead><tr><th scope="col">Job</th><th scope="col" class="number">Starts in about</th><th scope="col" class="number">Ahead</th><th scope="col" class="number">Priority</th><th scope="col">Why it waits</th><th scope="col">Makes room</th></tr></thead>
    <tbody>${queue.map((item) => html`<tr key=${item.job}><th scope="row">${link(item.job)}</th>
      <td>${item.expectedStart ? writeLength(Math.max(0, (Date.parse(item.expectedStart) - now) / 1000)) : "not known"}</td>
      <td>${item.ahead ?? "–"}</td><td>${item.priority}</td>
      <td class="word">${item.message.replace(/^waits: /, "")}${item.unknownBecause ? html`<br /><span class="quiet">The start is not known because ${item.unknownBecause}.</span>` : null}</td>
      <td class="word">${item.makesRoom.length ? item.makesRoom.map((job) => html`<div>${link(job)}</div>`) : "–"}</td></tr>`)}</tbody>
  </table></div>
  <p class="quiet">Starts are expected if running jobs end as predicted and no other job comes.</p>`;
}
