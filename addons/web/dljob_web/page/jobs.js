// The view of jobs: a table, or the one that is chosen.
import { Component } from "./vendor/preact.js";
import { Job } from "./job.js";
import { data, html, numberOfJob, sumHeld, writeHours, writeOutcome } from "./view.js";

const MOST_ROWS = 300;

const COLUMNS = [
  ["Job", (job) => job.name],
  ["GPUs at most", (job) => job.gpus],
  ["GPU time", sumHeld],
  ["Changes", (job) => job.changes],
  ["Outcome", writeOutcome],
];

export class Jobs extends Component {
  constructor(props) {
    super(props);
    this.state = { word: "", column: -1, sign: 1 };
  }

  sort(column) {
    const sign = column === this.state.column ? -this.state.sign : column ? -1 : 1;
    this.setState({ column, sign });
  }

  list() {
    const { word, column, sign } = this.state;
    const found = data.jobs.filter((job) => job.name.toLowerCase().includes(word.toLowerCase()));
    if (column < 0) return found;
    const of = COLUMNS[column][1];
    return found.sort((one, other) => sign * (of(one) < of(other) ? -1 : of(one) > of(other) ? 1 : 0));
  }

  render({ place, open, at }) {
    if (place.job) return html`<section><p><a href="#view=jobs">All jobs</a></p><${Chosen} key=${place.job} name=${place.job} open=${open} at=${at} /></section>`;
    const found = this.list();
    return html`<section>
      <div class="tools"><label>Name contains <input type="search" value=${this.state.word} onInput=${(event) => this.setState({ word: event.target.value })} /></label>
        <span class="quiet">${found.length} jobs${found.length > MOST_ROWS ? `, the first ${MOST_ROWS} are shown` : ""}</span></div>
      <div class="wide"><table>
        <thead><tr>${COLUMNS.map(([name], column) => html`<th scope="col" class=${column && column < 4 ? "number" : ""} aria-sort=${this.state.column === column ? (this.state.sign > 0 ? "ascending" : "descending") : "none"}>
          <button class="link" onClick=${() => this.sort(column)}>${name}</button></th>`)}</tr></thead>
        <tbody>${found.slice(0, MOST_ROWS).map((job) => html`<tr>
          <th scope="row"><button class="link" onClick=${() => open(job.name)}>${job.name}</button></th>
          <td>${job.gpus}</td><td>${writeHours(sumHeld(job))}</td><td>${job.changes}</td><td class="word">${writeOutcome(job)}</td>
        </tr>`)}</tbody>
      </table></div>
    </section>`;
  }
}

function Chosen({ name, open, at }) {
  const job = data.jobs[numberOfJob(name)];
  if (job) return html`<${Job} job=${job} open=${open} at=${at} />`;
  return html`<p>The record has no job with this name, or it is not yours to see.</p>`;
}
