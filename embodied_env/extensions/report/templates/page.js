// Readout at the pointer or the arrow keys, and a table, for each chart; their values are computed from its paths.
(function () {
  'use strict';
  var UNITS = 1000;

  function numbers(text) { return text.split(' ').map(Number); }

  function short(value) {
    return Number(value.toPrecision(4)).toString();
  }

  // The lines of a chart: name, and points [x, y] in its own units; steps are whole numbers.
  function curves(plot) {
    var x = numbers(plot.dataset.x), y = numbers(plot.dataset.y), near = (x[1] - x[0]) / UNITS;
    function whole(value) { return Math.abs(value - Math.round(value)) < near ? Math.round(value) : value; }
    return Array.from(plot.querySelectorAll('.curve')).map(function (path) {
      var points = (path.getAttribute('d').match(/-?\d+,-?\d+/g) || []).map(function (pair) {
        var at = pair.split(',');
        return [whole(x[0] + at[0] / UNITS * (x[1] - x[0])), y[1] - at[1] / UNITS * (y[1] - y[0])];
      }).filter(function (point, index, all) { return !index || String(point) !== String(all[index - 1]); });
      return {name: path.dataset.name, points: points};
    });
  }

  function nearest(points, x) {
    return points.reduce(function (best, point) {
      return !best || Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best;
    }, null);
  }

  function makeTable(plot, lines) {
    var places = [], rows = new Map();
    lines.forEach(function (line, column) {
      line.points.forEach(function (point) {
        var place = short(point[0]);
        if (!rows.has(place)) { rows.set(place, []); places.push(point[0]); }
        (rows.get(place)[column] = rows.get(place)[column] || []).push(short(point[1]));
      });
    });
    places.sort(function (a, b) { return a - b; });
    var table = document.createElement('table');
    function addRow(tag, cells) {
      var row = table.insertRow();
      cells.forEach(function (text) { row.appendChild(document.createElement(tag)).textContent = text; });
    }
    addRow('th', [plot.dataset.xTitle].concat(lines.map(function (line) { return line.name; })));
    places.forEach(function (place) {
      var row = rows.get(short(place));
      addRow('td', [short(place)].concat(lines.map(function (_, column) { return (row[column] || []).join(', '); })));
    });
    return table;
  }

  document.querySelectorAll('.plot[data-x]').forEach(function (plot) {
    var figure = plot.closest('figure'), svg = plot.querySelector('svg.lines'), x = numbers(plot.dataset.x);
    var readout = document.createElement('output'), cursor = document.createElement('i'), lines, at = x[0];
    readout.className = 'readout';
    cursor.className = 'cursor';
    cursor.hidden = true;
    plot.append(readout, cursor);

    function show(value) {
      lines = lines || curves(plot);
      at = Math.min(Math.max(value, x[0]), x[1]);
      var points = lines.map(function (line) { return nearest(line.points, at); });
      var place = points.filter(Boolean).reduce(function (best, point) {
        return best === null || Math.abs(point[0] - at) < Math.abs(best - at) ? point[0] : best;
      }, null);
      if (place === null) { return; }
      cursor.hidden = false;
      var box = svg.getBoundingClientRect(), left = box.left - plot.getBoundingClientRect().left;
      cursor.style.left = left + box.width * (place - x[0]) / (x[1] - x[0]) + 'px';
      readout.textContent = plot.dataset.xTitle.split(',')[0] + ' ' + short(place) + ':  ' + lines.map(function (line) {
        var point = nearest(line.points, place);
        return point ? line.name + ' ' + short(point[1]) : '';
      }).filter(Boolean).join('  ') + ' ' + plot.dataset.unit;
    }

    function hide() { cursor.hidden = true; readout.textContent = ''; }

    plot.addEventListener('pointermove', function (event) {
      var box = svg.getBoundingClientRect();
      show(x[0] + (event.clientX - box.left) / box.width * (x[1] - x[0]));
    });
    plot.addEventListener('pointerleave', hide);
    figure.addEventListener('blur', hide);
    figure.addEventListener('keydown', function (event) {
      var step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!step || event.target !== figure) { return; }
      event.preventDefault();
      readout.setAttribute('aria-live', 'polite');
      lines = lines || curves(plot);
      var places = [].concat.apply([], lines.map(function (line) { return line.points; })).map(function (point) {
        return point[0];
      }).filter(function (place) { return step * (place - at) > 1e-9; });
      if (places.length) { show(step > 0 ? Math.min.apply(null, places) : Math.max.apply(null, places)); }
    });

    var details = document.createElement('details'), summary = document.createElement('summary');
    details.className = 'values';
    summary.textContent = 'Values';
    summary.setAttribute('aria-label', 'Values of ' + svg.getAttribute('aria-label').split(':')[0]);
    details.append(summary);
    details.addEventListener('toggle', function () {
      if (details.childElementCount === 1) {
        var scroll = document.createElement('div');
        scroll.className = 'scroll';
        scroll.tabIndex = 0;
        scroll.append(makeTable(plot, lines || curves(plot)));
        details.append(scroll);
      }
    });
    figure.append(details);
  });

  // The strip marks the chosen episode.
  function markChosen() {
    var shown = document.querySelector('.episode:target') || document.querySelector('.episode.default');
    document.querySelectorAll('.strip a').forEach(function (link) {
      var chosen = shown && link.getAttribute('href') === '#' + shown.id;
      link.classList.toggle('current', chosen);
      if (chosen) { link.setAttribute('aria-current', 'true'); } else { link.removeAttribute('aria-current'); }
    });
  }
  addEventListener('hashchange', markChosen);
  markChosen();
})();
