// Before printing, figures get the width of the paper, which they cannot know by themselves.
(function () {
  function each(change) {
    if (!window.Plotly) return;
    document.querySelectorAll('.js-plotly-plot').forEach(function (figure) {
      Plotly.relayout(figure, change(figure));
    });
  }
  addEventListener('beforeprint', function () {
    var main = document.querySelector('main');
    main.style.width = '680px';
    document.querySelectorAll('.grid').forEach(function (grid) { grid.style.gridTemplateColumns = '1fr 1fr'; });
    each(function (figure) { return {width: figure.parentElement.clientWidth, autosize: false}; });
  });
  addEventListener('afterprint', function () {
    document.querySelector('main').style.width = '';
    document.querySelectorAll('.grid').forEach(function (grid) { grid.style.gridTemplateColumns = ''; });
    each(function () { return {width: null, autosize: true}; });
  });
})();
