// Pictures: drag with the mouse; zoom with Ctrl and the wheel, + and -, and the buttons.
const picture = document.querySelector(".picture");

const widthOf = (image) => image.getBoundingClientRect().width;

function size(width) {
  const image = picture.querySelector("svg");
  const before = widthOf(image);
  const now = Math.min(8 * image.viewBox.baseVal.width, Math.max(100, width));
  const [x, y] = [picture.clientWidth / 2, picture.clientHeight / 2];
  image.style.width = `${now}px`; // keep the centre
  image.style.height = "auto";
  picture.scrollLeft = ((picture.scrollLeft + x) * now) / before - x;
  picture.scrollTop = ((picture.scrollTop + y) * now) / before - y;
}

function zoom(factor) {
  size(factor ? widthOf(picture.querySelector("svg")) * factor : picture.clientWidth - 20);
}

if (picture) {
  document.getElementById("zooms").hidden = false;
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
  }
  picture.addEventListener("keydown", (event) => {
    if (event.key === "+") zoom(1.25);
    if (event.key === "-") zoom(0.8);
  });
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1);
  }, { passive: false });
  picture.addEventListener("pointermove", (event) => {
    const drags = event.pointerType === "mouse" && event.buttons === 1;
    picture.classList.toggle("drag", drags);
    if (drags) picture.scrollBy(-event.movementX, -event.movementY);
  });
  picture.addEventListener("dragstart", (event) => event.preventDefault()); // of a link
}
