"""Run our launch files to their end, and exit with the launch status.

python launched.py NAME ... [name:=value ...]
"""

import sys
from pathlib import Path

from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource

from launch import LaunchDescription, LaunchService

FOLDER = Path(__file__).parents[3] / "launch"


def including(name, given):
    source = PythonLaunchDescriptionSource(str(FOLDER / f"{name}.launch.py"))
    return LaunchDescription([IncludeLaunchDescription(source, launch_arguments=list(given.items()))])


if __name__ == "__main__":
    service = LaunchService(noninteractive=True)
    given = dict(word.split(":=") for word in sys.argv[1:] if ":=" in word)
    for name in sys.argv[1:]:
        if ":=" not in name:
            service.include_launch_description(including(name, given))
    sys.exit(service.run())
