"""``python -m stele.tablet_balancer``: configured by STELE_* environment variables."""

from stele.runtime.follow import run_follower_service

if __name__ == "__main__":
    raise SystemExit(run_follower_service("tablet-balancer"))
