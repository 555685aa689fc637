"""Runs for reports, and the parsed HTML of pages and charts."""

from html.parser import HTMLParser

import numpy as np

from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions, read_run

HOSTILE = "<script>alert(1)</script><img src=//evil.example/x>\"'&"
VOID = ("meta", "img", "br")
LOADS = ("src", "href", "srcset", "data", "action", "poster", "background", "formaction")


class Html(HTMLParser):
    """The tags of a page or chart with their attributes, its text, and its styles."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.shown, self.styles, self.open = [], [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside != "script":
            (self.styles if inside == "style" else self.shown).append(data)

    @property
    def loads(self):
        """The resources it would load."""
        return [value for _, attributes in self.elements for name, value in attributes.items() if name in LOADS]

    @property
    def words(self):
        return " ".join(" ".join(self.shown).split())

    def of(self, tag):
        return [attributes for found, attributes in self.elements if found == tag]


def record(folder, contract="arm_reach", steps=12, resets=2):
    env = RecordTransitions(EmbodiedEnv(contract, backend="fake"), folder, policy="swaying")
    (action_size,) = env.action_space.shape or ()
    for episode in range(resets):
        env.reset(seed=5 if episode == 0 else None)
        for step in range(steps):
            _, _, terminated, truncated, _ = env.step(0.9 * np.sin(step + np.arange(action_size)))
            if terminated or truncated:
                break
    env.close()
    return env.path


def rows_of(path):
    return list(read_run(path).rows())
