// Figures, tabs, legends, theme and printing. Nothing here loads anything.
(function () {
  "use strict";
  var root = document.documentElement;
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var drawn = {};
  var printing = false;
  var CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  var TURN = 200; // milliseconds of drawing before the reader's input is looked at again
  var TOKEN = /^@([a-z][a-z0-9]*)(?:\/(\d+))?$/;

  // Colours: tokens of the figures are replaced by the theme's, and only where a colour stands.

  function isDark() {
    if (printing) return false;
    if (root.dataset.theme) return root.dataset.theme === "dark";
    return matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function palette() {
    var style = getComputedStyle(root);
    var cache = {};
    return function (token) {
      var found = TOKEN.exec(token);
      if (!found) return token;
      if (!(token in cache)) {
        var hex = style.getPropertyValue("--" + found[1]).trim();
        var parts = [1, 3, 5].map(function (at) { return parseInt(hex.slice(at, at + 2), 16); });
        cache[token] = found[2]
          ? "rgba(" + parts.join(",") + "," + Number(found[2]) / 100 + ")"
          : hex;
      }
      return cache[token];
    };
  }

  function painted(value, key, paint) {
    if (typeof value === "string") return /color$/.test(key) ? paint(value) : value;
    if (Array.isArray(value)) {
      if (key === "colorscale") {
        return value.map(function (stop) { return [stop[0], paint(stop[1])]; });
      }
      if (typeof value[0] === "number") return value;
      return value.map(function (one) { return painted(one, key, paint); });
    }
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (name) { copy[name] = painted(value[name], name, paint); });
      return copy;
    }
    return value;
  }

  function layout(figure, paint, width) {
    var own = painted(figure.layout, "layout", paint);
    var text = paint("@text");
    return Object.assign(
      {
        autosize: !width,
        width: width || undefined,
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: "system-ui, sans-serif", size: 13, color: text },
        margin: { l: 66, r: 14, t: 14, b: 48 },
        showlegend: false,
        dragmode: false,
        hovermode: "x unified",
        hoverlabel: {
          bgcolor: paint("@raised"),
          bordercolor: paint("@line"),
          font: { color: text, size: 13 }
        }
      },
      own
    );
  }

  function hiddenKeys(div) {
    var off = {};
    div.closest("figure").querySelectorAll('.key[aria-pressed="false"]').forEach(function (key) {
      off[key.dataset.key] = true;
    });
    return off;
  }

  function draw(div, paint, width) {
    var figure = figures[div.id];
    var off = hiddenKeys(div);
    var traces = painted(figure.data, "data", paint);
    traces.forEach(function (trace) { if (off[trace.legendgroup]) trace.visible = false; });
    drawn[div.id] = true;
    return Plotly.react(div, traces, layout(figure, paint, width), CONFIG);
  }

  function plots() {
    return Array.prototype.slice.call(document.querySelectorAll(".plot"));
  }

  function isShown(div) {
    return div.offsetParent !== null;
  }

  function drawShown(again) {
    var paint = palette();
    plots().forEach(function (div) {
      if (isShown(div) && (again || !drawn[div.id])) draw(div, paint);
    });
  }

  // What is on the screen at once, the rest a few at a time, so that the page can be read meanwhile;
  // not one at a time, since the browser lays the page out and paints it after each turn.
  function drawAll() {
    var paint = palette();
    var waiting = plots().filter(isShown);
    waiting = waiting.filter(function (div) {
      if (div.getBoundingClientRect().top > innerHeight) return true;
      draw(div, paint);
      return false;
    });
    root.dataset.first = Math.round(performance.now());
    function next() {
      var start = performance.now();
      while (waiting.length && performance.now() - start < TURN) {
        var div = waiting.shift();
        if (!drawn[div.id] && isShown(div)) draw(div, paint);
      }
      if (waiting.length) setTimeout(next, 0);
      else root.dataset.drawn = Math.round(performance.now());
    }
    setTimeout(next, 0);
  }

  // Tabs: click, arrows, Home and End.

  function select(tab) {
    var tabs = tab.parentElement.querySelectorAll('[role="tab"]');
    tabs.forEach(function (one) {
      var chosen = one === tab;
      one.setAttribute("aria-selected", String(chosen));
      one.tabIndex = chosen ? 0 : -1;
      document.getElementById(one.getAttribute("aria-controls")).hidden = !chosen;
    });
    drawShown(false);
    document
      .getElementById(tab.getAttribute("aria-controls"))
      .querySelectorAll(".plot")
      .forEach(function (div) { if (isShown(div)) Plotly.Plots.resize(div); });
  }

  document.querySelectorAll('[role="tablist"]').forEach(function (list) {
    list.addEventListener("click", function (event) {
      var tab = event.target.closest('[role="tab"]');
      if (tab) select(tab);
    });
    list.addEventListener("keydown", function (event) {
      var tabs = Array.prototype.slice.call(list.querySelectorAll('[role="tab"]'));
      var at = tabs.indexOf(document.activeElement);
      var to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined || at < 0) return;
      event.preventDefault();
      var tab = tabs[(to + tabs.length) % tabs.length];
      tab.focus();
      select(tab);
    });
  });

  // Legends: a name shows and hides what belongs to it.

  document.querySelectorAll(".key").forEach(function (key) {
    key.addEventListener("click", function () {
      key.setAttribute("aria-pressed", String(key.getAttribute("aria-pressed") !== "true"));
      draw(key.closest("figure").querySelector(".plot"), palette());
    });
  });

  // Saving: a figure by itself, with a title and a legend, in light colours.

  function alone(figure, off) {
    root.classList.add("printing");
    var paint = palette();
    var traces = painted(figure.data, "data", paint);
    traces.forEach(function (trace) {
      trace.showlegend = false;
      if (off[trace.legendgroup]) trace.visible = false;
    });
    var own = layout(figure, paint, figure.saved.layout.width);
    var beside = painted(figure.saved, "saved", paint);
    Object.assign(own, beside.layout);
    own.margin = Object.assign({}, own.margin, { t: own.margin.t + beside.top });
    root.classList.remove("printing");
    var legend = beside.data.filter(function (entry, at) { return !off[figure.saved.names[at]]; });
    return { data: traces.concat(legend), layout: own };
  }

  document.querySelectorAll(".save button").forEach(function (button) {
    button.addEventListener("click", function () {
      var div = button.closest("figure").querySelector(".plot");
      var figure = figures[div.id];
      Plotly.downloadImage(alone(figure, hiddenKeys(div)), {
        format: button.dataset.format,
        filename: div.id,
        width: figure.saved.layout.width,
        height: figure.saved.layout.height,
        scale: button.dataset.format === "png" ? 2 : 1
      });
    });
  });

  // Light and dark.

  document.getElementById("theme").addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("plumbline-theme", root.dataset.theme);
    } catch (error) {
      // Not kept, then.
    }
    drawn = {};
    drawShown(true);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    if (!root.dataset.theme) {
      drawn = {};
      drawShown(true);
    }
  });

  // Copying: the clipboard may be closed to a page opened from a file.

  document.querySelectorAll(".copy").forEach(function (button) {
    button.addEventListener("click", function () {
      var code = button.parentElement.querySelector("code");
      var range = document.createRange();
      range.selectNodeContents(code);
      var selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
      setTimeout(function () { button.textContent = "Copy"; }, 1500);
    });
  });

  // Tables that are wider than the page say so, and on which side there is more.

  function markWide(table) {
    var more = table.scrollWidth - table.clientWidth;
    if (more < 8) table.removeAttribute("data-wide");
    else table.dataset.wide = table.scrollLeft > more / 2 ? "end" : "start";
  }

  function markAllWide() {
    document.querySelectorAll(".table").forEach(markWide);
  }

  document.querySelectorAll(".table").forEach(function (table) {
    table.addEventListener("scroll", function () { markWide(table); }, { passive: true });
  });
  addEventListener("resize", markAllWide);
  document.querySelectorAll("details.data").forEach(function (one) {
    one.addEventListener("toggle", markAllWide);
  });
  markAllWide();

  // Contents: where the reader is; and a menu that closes when it was used.

  var links = {};
  document.querySelectorAll(".side a").forEach(function (link) {
    links[link.getAttribute("href").slice(1)] = link;
  });
  var watch = new IntersectionObserver(
    function (entries) {
      entries.forEach(function (entry) {
        if (!entry.isIntersecting || !links[entry.target.id]) return;
        Object.keys(links).forEach(function (name) { links[name].removeAttribute("aria-current"); });
        links[entry.target.id].setAttribute("aria-current", "true");
      });
    },
    { rootMargin: "-15% 0px -75% 0px" }
  );
  document.querySelectorAll("main > section").forEach(function (one) { watch.observe(one); });
  document.querySelectorAll(".menu a").forEach(function (link) {
    link.addEventListener("click", function () { link.closest("details").open = false; });
  });

  // Paper: the tabs that are chosen, in light colours, at a width that fits the sheet.

  addEventListener("beforeprint", function () {
    printing = true;
    root.classList.add("printing");
    document.querySelectorAll(".statement details, .recipe").forEach(function (one) {
      one.open = true;
    });
    var paint = palette();
    plots().filter(isShown).forEach(function (div) {
      draw(div, paint, div.closest(".beside") ? 320 : 670);
    });
  });
  addEventListener("afterprint", function () {
    printing = false;
    root.classList.remove("printing");
    drawn = {};
    drawShown(true);
  });

  drawAll();
})();
