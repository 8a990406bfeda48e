"""``python -m stele.catch_up``: configured by STELE_* environment variables."""

from stele.runtime.follow import run_follower_service

if __name__ == "__main__":
    raise SystemExit(run_follower_service("catch-up"))
