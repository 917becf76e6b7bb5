"use strict";
/* The page's sortable tables and the view of a single client. Text reaches the page as text only. */
(() => {
  const { html } = Charts;
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const { score, redraws } = Controls;

  redraws.push(() => document.querySelectorAll("table.results").forEach(sort));

  // A table is sorted by the column whose head says so; what has no number comes last.
  function sort(table) {
    const head = table.querySelector("th[aria-sort]");
    if (!head) return; // in the reader's own order until a head is clicked
    const column = [...head.parentElement.children].indexOf(head);
    const up = head.getAttribute("aria-sort") === "ascending";
    const key = (row) => {
      const cell = row.children[column];
      if (column === 0) return cell.dataset.name;
      const text = cell.dataset[score()] ?? cell.dataset.value;
      return text === "" || text == null ? null : Number(text);
    };
    const compare = (a, b) =>
      typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort(([a], [b]) =>
      a === null || b === null ? (a === null) - (b === null) : up ? compare(a, b) : compare(b, a),
    );
    body.append(...rows.map(([, row]) => row));
  }
  for (const table of document.querySelectorAll("table.results")) {
    for (const head of table.tHead.querySelectorAll("th[data-first]")) {
      head.querySelector("button").addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const turned = now === "ascending" ? "descending" : "ascending";
        table
          .querySelectorAll("th[aria-sort]")
          .forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", now ? turned : head.dataset.first);
        sort(table);
      });
    }
  }

  // Matrices are packed: two characters a value, in thousandths, rows of 1, 2, 3, ... values; see clients.py.
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  function unpack(text, tasks) {
    let at = 0;
    const value = () => {
      const code = DIGITS.indexOf(text[at]) * 64 + DIGITS.indexOf(text[at + 1]);
      at += 2;
      return code === 4095 ? null : code / 1000;
    };
    return Array.from({ length: tasks }, (_, t) => Array.from({ length: t + 1 }, value));
  }

  function option(text, value) {
    return html("option", { value }, text);
  }
  function headed(heads, rows, className) {
    return html(
      "table",
      className ? { class: className } : {},
      html(
        "thead",
        {},
        html(
          "tr",
          {},
          ...heads.map((text) =>
            html(
              "th",
              { scope: "col", ...(["train", "test"].includes(text) ? { class: "num" } : {}) },
              text,
            ),
          ),
        ),
      ),
      html("tbody", {}, ...rows),
    );
  }

  function clientView(section, group, which) {
    const [entryPick, seedPick, clientPick] = ["entry", "seed", "client"].map((name) =>
      section.querySelector(`select[name=${name}]`),
    );
    entryPick.append(...group.entries.map((entry, i) => option(entry.label, i)));
    entryPick.value = group.start;
    const single = group.seeds.length === 1;
    const seedChoices = single
      ? [[`seed ${group.seeds[0]}`, "mean"]]
      : [["mean over seeds", "mean"], ...group.seeds.map((seed, i) => [`seed ${seed}`, i])];
    seedPick.append(...seedChoices.map(([text, value]) => option(text, value)));
    clientPick.append(...group.clients.map((name, i) => option(name, i)));
    const view = section.querySelector(".client");
    const level = section.dataset.level;
    view.classList.toggle("wide", group.tasks > 8);
    const dense = group.tasks > 14; // numbers without their 0, so that 40 tasks fit
    const className = (label) => group.classes?.[label] ?? String(label);
    const seedOf = () => (seedPick.value === "mean" ? (single ? 0 : null) : Number(seedPick.value));

    function region(title, note, ...content) {
      return html(
        "div",
        {},
        html(level, {}, title),
        ...(note ? [html("p", { class: "fine" }, note)] : []),
        ...content,
      );
    }
    function scroll(name, content) {
      return html(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": `${name}${which}` },
        content,
      );
    }
    function sequence(k) {
      const seeds = seedOf() === null ? group.seeds.map((_, i) => i) : [seedOf()];
      const known = seeds.filter((i) => group.streams[i]?.clients[k]);
      if (!known.length)
        return region("Its tasks", "No split.json was kept, so the tasks are not known.");
      const tasks = known.map((i) => group.streams[i].clients[k].tasks);
      const one = known.length === 1;
      const heads = [
        "task",
        ...(one
          ? ["name", "classes", "train", "test"]
          : known.map((i) => `classes, seed ${group.seeds[i]}`)),
      ];
      const rows = Array.from({ length: Math.max(...tasks.map((list) => list.length)) }, (_, t) => {
        const classes = tasks.map((list) =>
          html(
            "td",
            { class: "classes" },
            list[t] ? list[t].classes.map(className).join(", ") : "\u2013",
          ),
        );
        const counts = one
          ? [tasks[0][t].train, tasks[0][t].test].map((n) =>
              html("td", { class: "num" }, String(n)),
            )
          : [];
        return html(
          "tr",
          {},
          html("th", { scope: "row" }, String(t + 1)),
          ...(one ? [html("td", {}, tasks[0][t].name)] : []),
          ...classes,
          ...counts,
        );
      });
      const note = one
        ? "In its own order; name is the task's number in the whole benchmark or data set."
        : "Every seed partitions the tasks again.";
      return region("Its tasks", note, scroll("Tasks of this client", headed(heads, rows)));
    }
    function matrix(entry, k) {
      const packed = seedPick.value === "mean" ? entry.mean : entry.seeds[Number(seedPick.value)];
      if (!packed)
        return region(
          "Its accuracy on each task",
          "Single seeds are left out of this page, which would become too large; report fewer directories to see them.",
        );
      const rows = unpack(packed[score()][k], group.tasks).map((values, t) =>
        html(
          "tr",
          {},
          html("th", { scope: "row" }, dense ? String(t + 1) : `after ${t + 1}`),
          ...values.map((value, i) => {
            const text = Charts.three(value);
            const cell = html(
              "td",
              value == null ? {} : { class: "cell" },
              dense ? text.replace(/^0\./, ".") : text,
            );
            if (value == null) return cell;
            cell.style.setProperty("--value", value);
            if (dense) cell.title = `task ${i + 1} after task ${t + 1}: ${text}`;
            return cell;
          }),
        ),
      );
      const heads = [
        dense ? "task" : "learned",
        ...Array.from({ length: group.tasks }, (_, i) => (dense ? String(i + 1) : `task ${i + 1}`)),
      ];
      return region(
        "Its accuracy on each task",
        `After each task learned, ${data.scores[score()]}. Read a column downwards to see a task being forgotten.`,
        scroll("Accuracy matrix", headed(heads, rows, dense ? "heat dense" : "heat")),
      );
    }
    function memory(entry, k) {
      const title = "Its memory";
      if (!group.memories)
        return region(
          title,
          "Not in this page: what a client remembers are its private samples. \u201cfedmes report --with-samples\u201d puts them in.",
        );
      const seed = seedOf() ?? 0;
      const sheet = data.samples[group.memories[entry.run][seed][k]];
      if (!sheet)
        return region(
          title,
          "There are no images to show: no memory, no images, or no room left in this page.",
        );
      const zoom = Math.max(1, Math.round(32 / Math.max(sheet.width, sheet.height)));
      const parts = [];
      for (const task of [...new Set(sheet.task)]) {
        const images = sheet.y.flatMap((label, i) => {
          if (sheet.task[i] !== task) return [];
          const image = html("span", {
            role: "img",
            "aria-label": `class ${className(label)}`,
            title: `class ${className(label)}`,
          });
          Object.assign(image.style, {
            width: `${sheet.width * zoom}px`,
            height: `${sheet.height * zoom}px`,
            backgroundImage: `url(${sheet.png})`,
            backgroundSize: `${sheet.columns * sheet.width * zoom}px ${sheet.rows * sheet.height * zoom}px`,
            backgroundPosition: `-${(i % sheet.columns) * sheet.width * zoom}px -${Math.floor(i / sheet.columns) * sheet.height * zoom}px`,
          });
          return [image];
        });
        parts.push(
          html(
            "div",
            {},
            html("p", { class: "fine" }, `task ${task + 1}`),
            html("div", { class: "samples" }, ...images),
          ),
        );
      }
      const note = `At the end of the run, seed ${group.seeds[seed]}: ${sheet.y.length} samples.`;
      return region(title, note, html("div", { class: "memory" }, ...parts));
    }
    function show() {
      const entry = group.entries[Number(entryPick.value)],
        k = Number(clientPick.value);
      view.replaceChildren(matrix(entry, k), sequence(k), memory(entry, k));
    }
    for (const pick of [entryPick, seedPick, clientPick]) pick.addEventListener("change", show);
    redraws.push(show);
    show();
  }

  data.groups.forEach((group, number) => {
    const section = document.getElementById(`g${number}`);
    const shown = new Set();
    const drawing = () => {
      for (const figure of group.figures)
        Figures.draw(
          group,
          shown,
          figure,
          document.getElementById(`g${number}-figure-${figure.id}`),
          score(),
        );
    };
    Figures.chips(section.querySelector(".figures"), group, shown, drawing);
    redraws.push(drawing);
    drawing();
    clientView(
      section.querySelector(".clients"),
      group,
      data.groups.length > 1 ? `, comparison ${number + 1}` : "",
    );
  });

  root.dataset.ready = "yes";
})();
