"use strict";
/* The page of a run that goes on: asks its server every second, and shows what is new. */
(() => {
  const PAUSE = 1000;
  const root = document.documentElement;
  const section = document.getElementById("figures");
  const shown = new Set();
  let now = JSON.parse(document.getElementById("data").textContent);
  let drawn = "";

  function draw() {
    const group = now.group;
    section.hidden = group.figures.length === 0;
    for (const place of section.querySelectorAll("figure")) {
      const figure = group.figures.find((one) => `figure-${one.id}` === place.id);
      place.hidden = figure === undefined;
      if (figure) Figures.draw(group, shown, figure, place, Controls.score());
    }
  }
  function runs() {
    section.querySelector(".chips").replaceChildren();
    shown.clear();
    Figures.chips(section, now.group, shown, draw);
  }
  function show(news) {
    const others = JSON.stringify(news.group.runs) !== JSON.stringify(now.group.runs);
    document.title = news.title;
    for (const part of ["state", "log"])
      // Made and escaped by the server; nothing in it can run, by the policy of this page.
      if (news[part] !== now[part]) document.getElementById(part).innerHTML = news[part];
    now = news;
    if (others) runs();
    if (JSON.stringify(now.group) === drawn) return;
    drawn = JSON.stringify(now.group);
    draw();
  }
  function lost(is) {
    document.getElementById("lost").hidden = !is;
  }
  async function ask() {
    try {
      const answer = await fetch("data", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      show(await answer.json());
      lost(false);
    } catch {
      lost(true);
    }
    root.dataset.asked = Number(root.dataset.asked ?? 0) + 1;
    setTimeout(ask, PAUSE);
  }

  Controls.redraws.push(draw);
  runs();
  show(now);
  root.dataset.ready = "yes";
  setTimeout(ask, PAUSE);
})();
