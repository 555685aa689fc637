"""``python -m embodied_env.testing.fault_injection``: the fault-injecting relay as a process."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from embodied_env.core.terminal import say
from embodied_env.errors import EmbodiedEnvError, UsageError
from embodied_env.testing.fault_injection.faults import FAULTS, Fault

_CONVERT: Mapping[str, Callable[[str], Any]] = {
    "float": float,
    "int": int,
    "bool": {"true": True, "false": False}.__getitem__,
}
_EXAMPLES = """faults: NAME[:KEY=VALUE,...], e.g.
  drop:share=0.3
  delay:delay_s=0.1,jitter_s=0.02
  duplicate:share=0.1   reorder:share=0.1,places=2   corrupt:share=0.01
  freeze:after_s=5,duration_s=2   restamp:kind=shift,offset_s=-1   burst:hold_s=0.4,every_s=1
"""


def parse_fault(text: str) -> Fault:
    """Parse ``NAME[:KEY=VALUE,...]``; raises UsageError."""
    name, _, settings = text.partition(":")
    if name not in FAULTS:
        raise UsageError(f"unknown fault {name!r} (expected one of: {', '.join(FAULTS)})")
    fields = {field.name: field for field in dataclasses.fields(FAULTS[name])}
    values: dict[str, Any] = {}
    for setting in settings.split(",") if settings else ():
        key, _, value = setting.partition("=")
        if key not in fields:
            raise UsageError(f"unknown setting of fault {name}: {key!r} (expected one of: {', '.join(fields)})")
        try:
            values[key] = _CONVERT.get(str(fields[key].type), str)(value)
        except (ValueError, KeyError):
            raise UsageError(f"invalid {name}:{key}: {value!r} (expected {fields[key].type})") from None
    missing = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in values]
    if missing:
        raise UsageError(f"missing setting of fault {name}: {', '.join(missing)}")
    return FAULTS[name](**values)


def main(argv: list[str] | None = None) -> int:
    """Relay until a signal; return 0, or 1 after a failure; exit with 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m embodied_env.testing.fault_injection",
        description="Relay a topic with seeded faults until SIGINT or SIGTERM, then print the counts.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--in", dest="source", required=True, metavar="TOPIC", help="topic to subscribe to")
    option("--out", dest="target", required=True, metavar="TOPIC", help="topic to publish")
    option("--type", required=True, help="message type, such as sensor_msgs/msg/JointState")
    option("--seed", type=int, required=True, help="seed of every decision, 0 or more")
    option(
        "--fault", action="append", default=[], help="fault to inject (repeatable; applied in this order); see below"
    )
    option("--namespace", default="/", help="absolute ROS 2 namespace of relative topics (default: /)")
    option("--best-effort", action="store_true", help="use best-effort reliability on both sides (default: reliable)")
    option("--transient-local", action="store_true", help="use transient-local durability (default: volatile)")
    option("--with-parent", action="store_true", help="exit at the end of standard input too")
    try:
        return _relay(parser.parse_args(argv))
    except UsageError as error:
        parser.error(str(error))
    except EmbodiedEnvError as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return 1


def _relay(args: argparse.Namespace) -> int:
    from embodied_env.core.process.child import watch_parent  # noqa: PLC0415
    from embodied_env.ros.setup_checks import check_namespace  # noqa: PLC0415
    from embodied_env.testing.fault_injection.node import ChaosNode, chaos_qos  # noqa: PLC0415 - --help needs no ROS

    check_namespace(args.namespace)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if args.with_parent:
        watch_parent(stop.set)
    chaos = ChaosNode(
        args.source,
        args.target,
        args.type,
        faults=[parse_fault(text) for text in args.fault],
        seed=args.seed,
        namespace=args.namespace,
        qos=chaos_qos(reliable=not args.best_effort, transient_local=args.transient_local),
    )
    with chaos:
        say(f"relaying {args.source} to {args.target}; press Ctrl-C to stop", flush=True)
        stop.wait()
        counts = chaos.counts()
    say(json.dumps(counts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
