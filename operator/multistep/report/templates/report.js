"use strict";
// Sorts and filters the trials. Without this script the page shows all of them, in the order of the tasks.
const table = document.getElementById("trial-table");
const trials = [...table.tBodies];
const [search, outcome, agent, task] = ["search", "outcome", "agent", "task"].map((id) => document.getElementById(id));
const count = document.getElementById("count");
const collator = new Intl.Collator("en", { numeric: true });

function options(select, field) {
  const values = [...new Set(trials.map((each) => each.dataset[field]))].filter(Boolean).sort(collator.compare);
  for (const value of values) select.add(new Option(value, value));
}

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const each of trials) {
    const { dataset } = each;
    const text = each.textContent.toLowerCase();
    each.hidden = !(
      (!outcome.value || dataset.outcome === outcome.value) &&
      (!agent.value || dataset.agent === agent.value) &&
      (!task.value || dataset.task === task.value) &&
      words.every((word) => text.includes(word))
    );
    shown += each.hidden ? 0 : 1;
  }
  count.textContent = `${shown} of ${trials.length} trials`;
}

function sort(head, field) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const each of head.parentElement.children) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const numbers = head.classList.contains("n");
  const value = (each) => (numbers ? Number(each.dataset[field] || "-1") : each.dataset[field]);
  const compare = numbers ? (a, b) => value(a) - value(b) : (a, b) => collator.compare(value(a), value(b));
  table.append(...[...trials].sort((a, b) => (down ? compare(b, a) : compare(a, b))));
}

function reveal() {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!found || found.tagName !== "TBODY") return;
  for (const each of [search, outcome, agent, task]) each.value = "";
  filter();
  const details = found.querySelector("details");
  if (details) details.open = true;
  found.scrollIntoView();
}

if (trials.length) {
  for (const [select, field] of [[outcome, "outcome"], [agent, "agent"], [task, "task"]]) options(select, field);
  for (const each of [search, outcome, agent, task]) each.addEventListener("input", filter);
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head, head.dataset.field));
    head.append(button);
  }
  document.getElementById("filters").hidden = false;
  addEventListener("hashchange", reveal);
  filter();
  reveal();
}
