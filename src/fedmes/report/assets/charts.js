"use strict";
/* Small SVG charts. They know series and looks, nothing of methods or files. Every chart ends in a list of stops,
   { x, y?, title, rows: [{ look, label, text, strong }] }: what the pointer and the arrow keys step through. */
const Charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const DASHES = ["none", "7 4", "1.5 4", "8 3 2 3"];
  const star = (r, w) =>
    `M${-r},${-w}H${-w}V${-r}H${w}V${-w}H${r}V${w}H${w}V${r}H${-w}V${w}H${-r}Z`;
  const MARKERS = [
    (r) => `M${-r},0A${r},${r} 0 1 0 ${r},0A${r},${r} 0 1 0 ${-r},0Z`,
    (r) => `M${-r * 0.9},${-r * 0.9}h${r * 1.8}v${r * 1.8}h${-r * 1.8}Z`,
    (r) => `M0,${-r * 1.15}L${r * 1.1},${r * 0.85}H${-r * 1.1}Z`,
    (r) => `M0,${-r * 1.3}L${r * 1.15},0L0,${r * 1.3}L${-r * 1.15},0Z`,
    (r) => `M0,${r * 1.15}L${r * 1.1},${-r * 0.85}H${-r * 1.1}Z`,
    (r) => star(r * 1.15, r * 0.42),
    (r) => star(r * 1.15, r * 0.42),
  ];
  const colour = (look) => `var(--c${look[0]})`;
  const minus = (text) => text.replace("-", "\u2212");
  const tiny = (value) => value !== 0 && Math.abs(value) < 0.0005; // only what methods of users' own report
  const three = (value) =>
    value == null ? "\u2013" : minus(tiny(value) ? value.toPrecision(3) : value.toFixed(3));

  function svg(tag, attributes = {}, ...children) {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  function html(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  function marker(look, x, y, size = 4, hollow = false) {
    const turn = look[2] === 6 ? " rotate(45)" : "";
    const paint = hollow
      ? { fill: "var(--bg)", stroke: colour(look), "stroke-width": 1.5 }
      : { fill: colour(look) };
    return svg("path", {
      d: MARKERS[look[2]](size),
      transform: `translate(${x},${y})${turn}`,
      ...paint,
    });
  }
  function sample(look) {
    // a piece of the line, for legends
    const line = {
      x1: 1,
      x2: 25,
      y1: 6,
      y2: 6,
      stroke: colour(look),
      "stroke-width": 2,
      "stroke-dasharray": DASHES[look[1]],
    };
    return svg(
      "svg",
      { viewBox: "0 0 26 12", "aria-hidden": "true" },
      svg("line", line),
      marker(look, 13, 6, 3.6),
    );
  }

  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((k) => k * power >= rough * 0.999) * power;
    const found = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step)
      found.push(Math.round(v * 1e9) / 1e9);
    return found;
  }
  const places = (step) =>
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].find(
      (d) => Math.abs(step * 10 ** d - Math.round(step * 10 ** d)) < 1e-6,
    ) ?? 9;
  function extent(values, anySize = false) {
    // a domain with some air
    const known = values.filter((v) => v != null);
    if (!known.length) return [0, 1];
    let [low, high] = known.reduce(
      ([a, b], v) => [Math.min(a, v), Math.max(b, v)],
      [Infinity, -Infinity],
    );
    const floor = (anySize && Math.min(0.04, 0.04 * Math.max(-low, high))) || 0.04;
    if (high - low < floor) [low, high] = [(low + high - floor) / 2, (low + high + floor) / 2];
    const air = (high - low) * 0.05;
    return [low - air, high + air];
  }
  const between =
    ([a, b], [c, d]) =>
    (v) =>
      c + ((v - a) / (b - a || 1)) * (d - c);

  /* The empty chart: grid, ticks and names of the axes. */
  function frame(
    box,
    { title, height, x, y, right = 12, left, xTicks, yLabel, xLabel, xText, rows },
  ) {
    const width = Math.max(120, box.clientWidth);
    let yTicks = [];
    for (let count = height < 200 ? 3 : 6; !rows && yTicks.length < 2 && count < 12; count++)
      yTicks = ticks(...y, count);
    const digits = yTicks.length > 1 ? places(yTicks[1] - yTicks[0]) : 1;
    const edge = {
      top: yLabel ? 26 : 8,
      bottom: xLabel ? 42 : 24,
      left: left ?? 14 + 7 * Math.max(...yTicks.map((t) => t.toFixed(digits).length), 1),
      right,
    };
    const chart = svg("svg", {
      role: "img",
      tabindex: 0,
      "aria-label": title,
      height,
      viewBox: `0 0 ${width} ${height}`,
    });
    const px = between(x, [edge.left, width - edge.right]);
    const py = between(y, [height - edge.bottom, edge.top]);
    for (const t of yTicks) {
      chart.append(
        svg("line", {
          class: t === 0 && y[0] < 0 ? "zero" : "grid",
          x1: edge.left,
          x2: width - edge.right,
          y1: py(t),
          y2: py(t),
        }),
      );
      chart.append(
        svg(
          "text",
          { x: edge.left - 8, y: py(t) + 4, "text-anchor": "end" },
          minus(t.toFixed(digits)),
        ),
      );
    }
    let last = -Infinity;
    const across = xTicks ?? ticks(...x, Math.max(2, width / 110));
    const xDigits = xTicks ? null : places(across[1] - across[0]);
    const xWord = (t) => (xText ? xText(t) : xDigits == null ? String(t) : t.toFixed(xDigits));
    const room = 8 + 7 * Math.max(...across.map((t) => xWord(t).length));
    const every =
      across.length > 8
        ? Math.max(1, Math.ceil((room * across.length) / (width - edge.left - edge.right)))
        : 1;
    for (const t of across.filter((_, i) => i % every === 0)) {
      const text = xWord(t);
      if (px(t) - last < 7 * text.length + 8 || px(t) > width - edge.right + 1) continue;
      last = px(t);
      if (rows)
        chart.append(
          svg("line", {
            class: "grid",
            x1: px(t),
            x2: px(t),
            y1: edge.top,
            y2: height - edge.bottom,
          }),
        );
      chart.append(
        svg("text", { x: px(t), y: height - edge.bottom + 17, "text-anchor": "middle" }, text),
      );
    }
    if (yLabel) chart.append(svg("text", { x: 0, y: 12 }, yLabel));
    if (xLabel)
      chart.append(
        svg(
          "text",
          { x: (edge.left + width - edge.right) / 2, y: height - 4, "text-anchor": "middle" },
          xLabel,
        ),
      );
    box.append(chart);
    return { chart, px, py, edge, width, height };
  }

  /* Names at the ends of lines, pushed apart evenly until none covers another. `column`: all at the right edge. */
  function endNames(at, ends, column) {
    const columns = [];
    for (const end of [...ends].sort((a, b) => a.x - b.x)) {
      if (!columns.length || (!column && end.x - columns.at(-1)[0].x > 110)) columns.push([]);
      columns.at(-1).push(end);
    }
    for (const each of columns) {
      spread(each, 15, at.edge.top, at.height - at.edge.bottom);
      for (const end of each) {
        const x = column ? at.width - at.edge.right + 18 : end.x + 16;
        at.chart.append(
          svg("line", { class: "leader", x1: end.x + 6, y1: end.y, x2: x - 3, y2: end.at }),
        );
        at.chart.append(svg("text", { class: "name", x, y: end.at + 4 }, end.label));
      }
    }
  }
  function spread(ends, gap, top, bottom) {
    const blocks = [];
    const half = (block) => (gap * (block.items.length - 1)) / 2;
    for (const end of ends.sort((a, b) => a.y - b.y)) {
      let block = { items: [end] };
      for (;;) {
        const middle = block.items.reduce((sum, item) => sum + item.y, 0) / block.items.length;
        block.at = Math.max(top + half(block), Math.min(bottom - half(block), middle));
        const above = blocks.at(-1);
        if (!above || above.at + half(above) + gap <= block.at - half(block)) break;
        block = { items: [...blocks.pop().items, ...block.items] };
      }
      blocks.push(block);
    }
    for (const block of blocks)
      block.items.forEach((item, i) => {
        item.at = block.at - half(block) + gap * i;
      });
  }

  function path(points, join) {
    let d = "",
      pen = false;
    for (const [x, y] of points) {
      if (y == null) {
        pen = pen && join;
        continue;
      }
      d += `${pen ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
      pen = true;
    }
    return d;
  }

  function lines(
    box,
    { title, xs, xLabel, xName, yLabel, series, domain, marks, join, small, height = 340 },
  ) {
    const strong = series.filter((s) => s.strong);
    const wide = box.clientWidth > 560 && !small;
    const right = wide ? 34 + 7.2 * Math.max(4, ...strong.map((s) => s.label.length)) : 12;
    const span = xs.length > 1 ? [xs[0], xs.at(-1)] : [xs[0] - 1, xs[0] + 1];
    const whole = xs.every((v) => Number.isInteger(v));
    const xTicks =
      xs.length <= 16
        ? xs
        : ticks(span[0], span[1], 8).filter((t) => !whole || Number.isInteger(t));
    const at = frame(box, {
      title,
      height: small ? 150 : height,
      x: span,
      y: domain,
      right,
      xTicks,
      xLabel,
      yLabel,
    });
    const { chart, px, py } = at;
    for (const mark of marks ?? [])
      chart.append(
        svg("line", {
          class: "grid",
          x1: px(mark),
          x2: px(mark),
          y1: at.edge.top,
          y2: at.height - at.edge.bottom,
        }),
      );
    const points = (s) => s.y.map((v, i) => [px(xs[i]), v == null ? null : py(v)]);
    for (const s of series.filter((one) => !one.strong))
      chart.append(svg("path", { class: "curve weak", d: path(points(s), join) }));
    for (const s of strong.length <= 7 ? strong.filter((one) => one.sd) : []) {
      const there = s.y.map((v, i) => i).filter((i) => s.y[i] != null);
      const edge = (sign) =>
        there.map(
          (i) => `${px(xs[i]).toFixed(1)},${py(s.y[i] + sign * (s.sd[i] ?? 0)).toFixed(1)}`,
        );
      if (there.length)
        chart.append(
          svg("path", {
            class: "band",
            fill: colour(s.look),
            d: `M${edge(1).join("L")}L${edge(-1).reverse().join("L")}Z`,
          }),
        );
    }
    const every = Math.max(1, Math.ceil(xs.length / (small ? 8 : 14)));
    for (const s of [...strong].reverse()) {
      chart.append(
        svg("path", {
          class: "curve",
          d: path(points(s), join),
          stroke: colour(s.look),
          "stroke-dasharray": DASHES[s.look[1]],
        }),
      );
      points(s).forEach(([x, y], i) => {
        if (y != null && i % every === 0) chart.append(marker(s.look, x, y, small ? 2.6 : 3.8));
      });
      for (const [i, v] of s.mixed ?? [])
        if (v != null) chart.append(marker(s.look, px(xs[i]), py(v), 4.2, true));
    }
    if (wide) {
      endNames(
        at,
        strong.flatMap((s) => {
          const end = points(s).findLast(([, y]) => y != null);
          return end ? [{ x: end[0], y: end[1], label: s.label }] : [];
        }),
        true,
      );
    }
    return {
      ...at,
      stops: xs.map((v, i) => ({
        x: px(v),
        title: `${xName} ${v}`,
        rows: series.flatMap((s) => {
          const rows =
            s.y[i] == null
              ? []
              : [
                  {
                    look: s.look,
                    label: s.label,
                    value: s.y[i],
                    y: py(s.y[i]),
                    strong: s.strong,
                    text: three(s.y[i]) + (s.sd?.[i] != null ? ` \u00b1 ${three(s.sd[i])}` : ""),
                  },
                ];
          for (const [place, mean, text] of s.mixed ?? [])
            if (place === i && mean != null)
              rows.push({
                look: s.look,
                label: `${s.label}, ${text}`,
                value: mean,
                y: py(mean),
                strong: true,
                text: three(mean),
              });
          return rows;
        }),
      })),
    };
  }

  function ranges(box, { title, xs, xName, series, domain }) {
    const [s] = series;
    const at = frame(box, {
      title,
      height: 150,
      x: [-0.5, xs.length - 0.5],
      y: domain,
      xTicks: xs.map((_, i) => i),
      xText: (i) => xs[i],
    });
    const thick = Math.min(6, (at.width / xs.length) * 0.45);
    s.y.forEach((v, i) => {
      if (v == null) return;
      at.chart.append(
        svg("line", {
          x1: at.px(i),
          x2: at.px(i),
          y1: at.py(s.low[i]),
          y2: at.py(s.high[i]),
          stroke: colour(s.look),
          "stroke-width": thick,
          opacity: 0.3,
        }),
      );
      at.chart.append(marker(s.look, at.px(i), at.py(v), Math.min(3.6, thick)));
    });
    return {
      ...at,
      stops: xs.map((name, i) => ({
        x: at.px(i),
        title: `${xName} ${name}`,
        rows: [
          ["mean", s.y[i]],
          ["lowest", s.low[i]],
          ["highest", s.high[i]],
        ].map(([label, v]) => ({ look: s.look, label, strong: true, text: three(v) })),
      })),
    };
  }

  function time(box, { title, xLabel, yLabel, points, domain }) {
    const known = points.filter((p) => p.y != null);
    const wide = box.clientWidth > 560;
    const right = wide ? 34 + 7.2 * Math.max(4, ...known.map((p) => p.label.length)) : 14;
    const most = Math.max(0.01, ...known.map((p) => p.compute + p.talk)) * 1.04;
    const at = frame(box, { title, height: 380, x: [0, most], y: domain, right, xLabel, yLabel });
    for (const p of [...known].reverse()) {
      const paint = p.strong ? colour(p.look) : "var(--context)";
      const y = at.py(p.y),
        from = at.px(p.compute),
        to = at.px(p.compute + p.talk);
      at.chart.append(
        svg("line", {
          x1: from,
          x2: to,
          y1: y,
          y2: y,
          stroke: paint,
          "stroke-width": p.strong ? 1.6 : 1,
        }),
      );
      if (p.strong) at.chart.append(marker(p.look, from, y, 4.4, true), marker(p.look, to, y, 4.4));
      else at.chart.append(svg("circle", { cx: to, cy: y, r: 3, fill: paint }));
    }
    if (wide)
      endNames(
        at,
        known
          .filter((p) => p.strong)
          .map((p) => ({ x: at.px(p.compute + p.talk), y: at.py(p.y), label: p.label })),
        false,
      );
    const row = (p, label, text) => ({ look: p.look, label, text, strong: true });
    return {
      ...at,
      stops: known.map((p) => ({
        x: at.px(p.compute + p.talk),
        y: at.py(p.y),
        title: p.label,
        rows: [
          row(p, "Acc_ALL", three(p.y)),
          row(p, "computing", `${p.compute.toFixed(2)} s`),
          row(p, "communication", `${p.talk.toFixed(2)} s`),
          row(p, "together", `${(p.compute + p.talk).toFixed(2)} s`),
        ],
      })),
    };
  }

  function boxes(box, { title, xLabel, boxes: all, domain }) {
    const left = Math.min(
      box.clientWidth * 0.5,
      18 + 7.4 * Math.max(...all.map((b) => b.label.length)),
    );
    const at = frame(box, {
      title,
      height: 60 + 30 * all.length,
      x: domain,
      y: [all.length, 0],
      left,
      xLabel,
      rows: true,
    });
    all.forEach((b, i) => {
      const y = at.edge.top + (i + 0.5) * ((at.height - at.edge.top - at.edge.bottom) / all.length);
      at.chart.append(
        svg("text", { x: left - 10, y: y + 4, "text-anchor": "end", class: "name" }, b.label),
      );
      if (b.five.includes(null)) return;
      const [low, first, middle, third, high] = b.five.map(at.px);
      for (const [from, to] of [
        [low, first],
        [third, high],
      ])
        at.chart.append(svg("line", { class: "zero", x1: from, x2: to, y1: y, y2: y }));
      at.chart.append(
        svg("rect", {
          x: first,
          width: Math.max(1, third - first),
          y: y - 8,
          height: 16,
          fill: colour(b.look),
          opacity: 0.6,
        }),
      );
      at.chart.append(
        svg("line", {
          x1: middle,
          x2: middle,
          y1: y - 8,
          y2: y + 8,
          stroke: "var(--ink)",
          "stroke-width": 2,
        }),
      );
      b.at = { x: middle, y };
    });
    const names = ["lowest", "lower quartile", "median", "upper quartile", "highest"];
    return {
      ...at,
      stops: all
        .filter((b) => b.at)
        .map((b) => ({
          ...b.at,
          title: b.label,
          rows: b.five.map((v, i) => ({
            look: b.look,
            label: names[i],
            text: three(v),
            strong: true,
          })),
        })),
    };
  }

  return { lines, ranges, time, boxes, sample, html, svg, extent, three };
})();
