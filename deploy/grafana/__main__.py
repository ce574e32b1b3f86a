"""Adds the dashboard to a folder of Grafana's configuration.

python -m deploy.grafana /tmp/ray/session_latest/metrics/grafana
"""

from __future__ import annotations

import argparse
from pathlib import Path

from deploy.grafana.provision import provision


def main() -> None:
    """Write, and say where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the one that holds provisioning/")
    print(provision(parser.parse_args().folder))


if __name__ == "__main__":
    main()
