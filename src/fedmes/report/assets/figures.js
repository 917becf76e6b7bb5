"use strict";
/* Fills the page's figures from its data: which series are in colour, what the pointer reads, and the same as a table. */
const Figures = (() => {
  const { html, svg } = Charts;
  const live = document.getElementById("live");

  /* Values under the pointer or, with the arrow keys, of the chosen stop. */
  function probe(box, { chart, stops, edge, width, height }) {
    let chosen = -1;
    const cursor = svg("line", {
      class: "cursor",
      y1: edge.top,
      y2: height - edge.bottom,
      visibility: "hidden",
    });
    const tip = html("div", { class: "tip", hidden: "" });
    chart.append(cursor);
    box.append(tip);
    function hide() {
      chosen = -1;
      tip.hidden = true;
      cursor.setAttribute("visibility", "hidden");
    }
    function show(place, pointerY, aloud) {
      if (place === chosen && pointerY == null) return;
      chosen = place;
      const stop = stops[place];
      const near = stop.rows
        .filter((row) => !row.strong && pointerY != null && Math.abs(row.y - pointerY) < 9)
        .slice(0, 3);
      const rows = stop.rows.filter((row) => row.strong || near.includes(row));
      if (rows.every((row) => row.value != null)) rows.sort((a, b) => b.value - a.value);
      tip.replaceChildren(
        html("b", {}, stop.title),
        ...rows.map((row) =>
          html(
            "div",
            {},
            Charts.sample(row.look),
            html("span", {}, row.label),
            html("span", {}, row.text),
          ),
        ),
      );
      tip.hidden = false;
      const scale = chart.getBoundingClientRect().width / width;
      const left = stop.x * scale + 14;
      const side =
        left + tip.offsetWidth > box.clientWidth
          ? Math.max(0, stop.x * scale - 14 - tip.offsetWidth)
          : left;
      tip.style.left = `${Math.min(side, Math.max(0, box.clientWidth - tip.offsetWidth))}px`;
      const above = chart.getBoundingClientRect().top - box.getBoundingClientRect().top;
      tip.style.top = `${above + Math.max(0, (stop.y ?? edge.top) * scale - 8)}px`;
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, stop.x);
      cursor.setAttribute("visibility", stop.y == null ? "visible" : "hidden");
      if (aloud)
        live.textContent = `${stop.title}: ${rows.map((row) => `${row.label} ${row.text}`).join(", ")}`;
    }
    chart.addEventListener("pointermove", (event) => {
      const area = chart.getBoundingClientRect();
      const x = ((event.clientX - area.left) / area.width) * width,
        y = ((event.clientY - area.top) / area.height) * height;
      const far = stops.map(
        (stop) => Math.abs(stop.x - x) + (stop.y == null ? 0 : 3 * Math.abs(stop.y - y)),
      );
      if (stops.length) show(far.indexOf(Math.min(...far)), y, false);
    });
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("focus", () => {
      if (stops.length && chart.matches(":focus-visible")) show(0, null, true);
    });
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || !stops.length) return;
      event.preventDefault();
      show(
        (Math.max(chosen, step > 0 ? chosen : 0) + step + stops.length) % stops.length,
        null,
        true,
      );
    });
  }

  /* A panel's series with their names and looks; weak ones are grey in the background. */
  function dressed(group, shown, panel, list) {
    const order = (one) => (one.run == null ? 0 : group.order.indexOf(one.run));
    return [...list]
      .sort((a, b) => order(a) - order(b))
      .map((one) => {
        const run = one.run == null ? one : group.runs[one.run];
        return {
          ...one,
          label: run.label,
          look: one.look ?? run.look,
          strong: one.run == null || panel.always || shown.has(one.run),
        };
      });
  }

  function draw(group, shown, figure, place, score) {
    const holder = place.querySelector(".plots");
    holder.replaceChildren();
    let panels = figure.panels[score] ?? figure.panels.any;
    if (figure.kind === "ranges") {
      const fit = group.order.map((run) => panels[run]).filter((panel) => shown.has(panel.run));
      panels = fit.length ? fit : panels.slice(0, 1);
    }
    const values = (panel) => [
      ...(panel.series ?? []).flatMap((s) => [
        ...s.y,
        ...(s.low ?? []),
        ...(s.high ?? []),
        ...(s.mixed ?? []).map((m) => m[1]),
        ...(s.sd && (panel.always || shown.has(s.run))
          ? s.y.flatMap((v, i) => (v == null ? [] : [v - s.sd[i], v + s.sd[i]]))
          : []),
      ]),
      ...(panel.points ?? []).map((p) => p.y),
      ...(panel.boxes ?? []).flatMap((b) => b.five),
    ];
    const seen = (panel) =>
      panels.length > 1 && panel.series
        ? { ...panel, series: panel.series.filter((s) => panel.always || shown.has(s.run)) }
        : panel;
    const together = Charts.extent(panels.map(seen).flatMap(values));
    const many = panels.length > 1 && !panels[0].alone;
    holder.classList.toggle("many", many);
    const level = place.dataset.level;
    const tables = [];
    const keys = new Map(); // who needs a legend: lines without a name at their end
    const named = !many && holder.clientWidth > 560;
    for (const panel of panels.map((one) => (many ? seen(one) : one))) {
      const box = html("div", { class: "plot" });
      if (panel.title) box.append(html(level, {}, panel.title));
      holder.append(box);
      const title = [place.dataset.title, panel.title].filter(Boolean).join(", ");
      const given = {
        title: `${title}; the arrow keys read out its values`,
        xs: figure.x,
        xName: figure.xName,
        xLabel: many ? undefined : figure.xLabel,
        yLabel: panel.y,
        small: many,
        marks: figure.marks,
        join: figure.join,
        height: panel.alone ? 250 : undefined,
        domain: panel.alone ? Charts.extent(values(panel), true) : together,
        series: dressed(group, shown, panel, panel.series ?? []),
        points: dressed(group, shown, panel, panel.points ?? []),
        boxes: dressed(group, shown, panel, panel.boxes ?? []),
      };
      const drawn = Charts[figure.kind](box, given);
      probe(box, drawn);
      const unnamed = named || figure.kind === "ranges" ? [] : [...given.series, ...given.points];
      for (const one of unnamed) if (one.strong) keys.set(one.label, one.look);
      tables.push([panel.title, drawn.stops]);
    }
    place
      .querySelector(".legend")
      .replaceChildren(
        ...[...keys].map(([label, look]) => html("span", {}, Charts.sample(look), label)),
      );
    const details = place.querySelector("details");
    details.ontoggle = () => {
      if (details.open)
        details
          .querySelector(".scroll")
          .replaceChildren(...tables.map(([name, stops]) => table(name, stops, figure.xLabel)));
    };
    details.ontoggle();
  }

  /* The stops as a table, one line each. */
  function table(name, stops, corner) {
    const labels = [...new Set(stops.flatMap((stop) => stop.rows.map((row) => row.label)))];
    const cell = (stop, label) =>
      html("td", { class: "num" }, stop.rows.find((row) => row.label === label)?.text ?? "\u2013");
    return html(
      "table",
      {},
      html("caption", { class: "hidden-text" }, name ?? corner),
      html(
        "thead",
        {},
        html(
          "tr",
          {},
          html("th", { scope: "col" }, name ?? corner),
          ...labels.map((label) => html("th", { scope: "col", class: "num" }, label)),
        ),
      ),
      html(
        "tbody",
        {},
        ...stops.map((stop) =>
          html(
            "tr",
            {},
            html("th", { scope: "row" }, stop.title),
            ...labels.map((label) => cell(stop, label)),
          ),
        ),
      ),
    );
  }

  /* The buttons that choose who is in colour. */
  function chips(section, group, shown, redraw) {
    const bar = section.querySelector(".chips");
    const buttons = group.order.map((i) => {
      const run = group.runs[i];
      const button = html("button", { type: "button" }, Charts.sample(run.look), run.label);
      button.addEventListener("click", () => {
        shown.has(i) ? shown.delete(i) : shown.add(i);
        update();
        redraw();
      });
      return button;
    });
    const choose = (text, wanted) => {
      const button = html("button", { type: "button", class: "plain" }, text);
      button.addEventListener("click", () => {
        shown.clear();
        wanted().forEach((i) => shown.add(i));
        update();
        redraw();
      });
      return button;
    };
    const everybody = () => group.runs.map((_, i) => i);
    const first = everybody().filter((i) => group.runs[i].shown);
    function update() {
      buttons.forEach((button, place) =>
        button.setAttribute("aria-pressed", shown.has(group.order[place])),
      );
    }
    bar.append(
      ...buttons,
      choose("all", everybody),
      ...(first.length < group.runs.length ? [choose(`best ${first.length}`, () => first)] : []),
    );
    first.forEach((i) => shown.add(i));
    update();
  }

  return { draw, chips };
})();
