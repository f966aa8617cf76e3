// The view "what if": one thing is supposed, and two futures of all jobs stand above each other. Of live pages only.
import { Component } from "./vendor/preact.js";
import { ask } from "./live.js";
import { colourOf, html, numberOfJob, writeLength } from "./view.js";

const ROW = 20;
// Of more jobs, those whose ends differ most are drawn, so that both futures fit into a window.
const MOST_DRAWN = 16;
const MOST_ROWS = 300;
const NUMBERS = ["priority", "least", "most"];

export class WhatIf extends Component {
  constructor(props) {
    super(props);
    this.state = { question: {}, withheld: null, policies: [], nodes: [], jobs: [], answer: null, problem: null, isAsking: false };
    this.choose();
  }

  componentWillUnmount() {
    this.isGone = true;
  }

  tell(change) {
    if (!this.isGone) this.setState(change);
  }

  async choose() {
    try {
      const { allowed, reason } = await (await ask("/api/v1/what-if")).json();
      if (!allowed) {
        this.tell({ withheld: reason });
        return;
      }
      const [policies, nodes, jobs] = await Promise.all(["policies", "nodes", "jobs"].map(async (path) => (await (await ask(`/api/v1/${path}`)).json()).items));
      const going = jobs.filter((job) => !["Completed", "Failed"].includes((job.status || {}).phase));
      this.tell({ policies, nodes: nodes.map((node) => node.name), jobs: going.map(({ metadata }) => (metadata.namespace ? `${metadata.namespace}/${metadata.name}` : metadata.name)) });
    } catch (error) {
      this.tell({ problem: error.message });
    }
  }

  async ask(event) {
    event.preventDefault();
    this.setState({ isAsking: true, problem: null });
    try {
      const answer = await ask("/api/v1/what-if", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(this.state.question) });
      this.tell({ answer: await answer.json(), asked: describe(this.state.question) });
    } catch (error) {
      this.tell({ problem: error.message, answer: null });
    }
    this.tell({ isAsking: false });
  }

  set(name, text) {
    this.setState(({ question }) => {
      const { [name]: _, ...others } = question;
      const changed = text === "" ? others : { ...others, [name]: NUMBERS.includes(name) ? Number(text) : text };
      if (!changed.job) for (const each of NUMBERS) delete changed[each];
      return { question: changed };
    });
  }

  render({ open }, { question, withheld, policies, nodes, jobs, answer, asked, problem, isAsking }) {
    if (withheld !== null) return html`<section><p role="status">No futures for you: ${withheld}.</p></section>`;
    const select = (name, none, values) => html`<select value=${question[name] || ""} onChange=${(event) => this.set(name, event.target.value)}>
      <option value="">${none}</option>${values.map((each) => html`<option value=${each}>${each}</option>`)}</select>`;
    const number = (name, least) => html`<input type="number" class="short" min=${least} disabled=${!question.job} value=${question[name] ?? ""} onInput=${(event) => this.set(name, event.target.value)} />`;
    return html`<section>
      <form class="question" onSubmit=${(event) => this.ask(event)}>
        <p><label>What if policy ${select("policy", "(the same)", policies)} decides,</label></p>
        <p><label>job ${select("job", "(none)", jobs)}</label> <label>has priority ${number("priority", null)}</label>${" "}
          <label>and runs on at least ${number("least", 1)}</label> <label>and at most ${number("most", 1)} GPUs,</label></p>
        <p><label>one more job like ${select("another", "(none)", jobs)} comes,</label></p>
        <p><label>and node ${select("cordon", "(none)", nodes)} gives its GPUs to no job any more?</label></p>
        <p><button disabled=${isAsking}>${isAsking ? "Plays both futures …" : "Play both futures"}</button> <span class="quiet">Nothing is changed.</span></p>
      </form>
      ${problem === null ? null : html`<p class="missing" role="alert">${problem}</p>`}
      ${answer === null ? null : html`<${Answer} answer=${answer} asked=${asked} open=${open} />`}
    </section>`;
  }
}

function describe({ policy, job, priority, least, most, another, cordon }) {
  return [
    policy && `policy ${policy} decides`,
    job && [`${job} has`, [priority !== undefined && `priority ${priority}`, least !== undefined && `at least ${least} GPUs`, most !== undefined && `at most ${most} GPUs`].filter(Boolean).join(", ")].join(" "),
    another && `one more job like ${another} comes`,
    cordon && `${cordon} is cordoned`,
  ].filter(Boolean).join(", ") || "nothing is different";
}

function Answer({ answer, asked, open }) {
  const [now, then] = answer.futures;
  const before = new Map(now.jobs.map((job) => [job.job, job]));
  const length = Math.max(1, ...[...now.jobs, ...then.jobs].map((job) => job.spans[job.spans.length - 2] || 0));
  const jobs = then.jobs.length > MOST_DRAWN ? byDifference(then.jobs, before) : then.jobs;
  const rows = jobs.slice(0, MOST_ROWS).map((job) => [before.get(job.job) || null, job]);
  const drawn = jobs.slice(0, MOST_DRAWN);
  const mean = (jobs) => { const ends = jobs.map((job) => job.endsInSeconds).filter((end) => end !== null); return ends.length ? ends.reduce((sum, end) => sum + end, 0) / ends.length : 0; };
  return html`<div aria-live="polite">
    <p>${summarize(then.jobs, before)}.${rows.length < jobs.length ? ` The table has the ${rows.length} whose ends differ most.` : ""}</p>
    <${Future} title=${`As it is, by ${now.policy}: jobs end in ${writeLength(mean(now.jobs))} on average`} jobs=${now.jobs} order=${drawn} length=${length} />
    <${Future} title=${`If ${asked}, by ${then.policy}: in ${writeLength(mean(then.jobs))} on average`} jobs=${then.jobs} order=${drawn} length=${length} />
    <p class="quiet">From now to in ${writeLength(length)}. A bar is as high as the job has GPUs, of the most that any job has.${drawn.length < jobs.length ? ` Of ${jobs.length} jobs, the ${drawn.length} whose ends differ most are drawn.` : ""}</p>
    <div class="wide"><table><thead><tr><th scope="col">Job</th><th scope="col" class="number">GPUs first</th><th scope="col" class="number">Ends as it is</th><th scope="col" class="number">Ends if so</th><th scope="col">Gain or loss</th></tr></thead>
      <tbody>${rows.map(([old, job]) => html`<tr key=${job.job}><th scope="row"><button class="link" onClick=${() => open(job.job)}>${job.job}</button></th>
        <td>${old ? `${old.gpus} → ${job.gpus}` : job.gpus}</td><td>${old ? writeEnd(old) : "–"}</td><td>${writeEnd(job)}</td><td class="word">${old ? html`<${Gain} old=${old.endsInSeconds} now=${job.endsInSeconds} />` : "new"}</td></tr>`)}</tbody></table></div>
    ${answer.notes.map((note) => html`<p class="quiet">${note}.</p>`)}
  </div>`;
}

// By how many seconds a job ends earlier; 0 is the same, and null: not known.
function gainOf(job, before) {
  const old = before.get(job.job);
  if (!old) return Infinity;
  const [was, is] = [old.endsInSeconds, job.endsInSeconds];
  if (was === null || is === null) return null;
  return Math.abs(was - is) < 1 ? 0 : was - is;
}

function byDifference(jobs, before) {
  const size = new Map(jobs.map((job) => [job, Math.abs(gainOf(job, before))]));
  return [...jobs].sort((one, other) => (size.get(one) === size.get(other) ? 0 : size.get(other) - size.get(one)));
}

function summarize(jobs, before) {
  const gains = jobs.filter((job) => before.has(job.job)).map((job) => gainOf(job, before));
  const count = (is) => gains.filter(is).length;
  return `${count((gain) => gain > 0)} of ${gains.length} jobs end earlier, ${count((gain) => gain < 0)} later, ${count((gain) => gain === 0)} at the same time${count((gain) => gain === null) ? `, and of ${count((gain) => gain === null)} it is not known` : ""}`;
}

const writeEnd = (job) => (job.endsInSeconds === null ? html`<span title=${job.unknownBecause}>not known</span>` : `in ${writeLength(job.endsInSeconds)}`);

function Gain({ old, now }) {
  if (old === null || now === null) return "not known";
  if (Math.abs(old - now) < 1) return "the same";
  return old > now ? html`<b class="gain">${writeLength(old - now)} earlier</b>` : html`<b class="loss">${writeLength(now - old)} later</b>`;
}

// Each job is a row in both futures, so that one looks down from one to the other.
function Future({ title, jobs, order, length }) {
  const found = new Map(jobs.map((job) => [job.job, job]));
  let most = 1;
  for (const job of jobs) for (let at = 2; at < job.spans.length; at += 3) most = Math.max(most, job.spans[at]);
  return html`<h2>${title}</h2><div class="future">${order.map(({ job: name }) => html`<div class="course"><span>${name}</span>
    <svg viewBox=${`0 0 1000 ${ROW}`} preserveAspectRatio="none" aria-hidden="true">${bars(found.get(name), length, most)}</svg></div>`)}</div>`;
}

function bars(job, length, most) {
  if (!job) return null;
  const number = numberOfJob(job.job);
  const drawn = [];
  for (let at = 0; at < job.spans.length; at += 3) {
    const [begin, end, gpus] = job.spans.slice(at, at + 3);
    const height = Math.max(3, (gpus / most) * (ROW - 2));
    drawn.push(html`<rect x=${(begin / length) * 1000} width=${Math.max(1, ((end - begin) / length) * 1000 - 1)} y=${ROW - height} height=${height} fill=${number < 0 ? "var(--accent)" : colourOf(number, "job")} />`);
  }
  return drawn;
}
