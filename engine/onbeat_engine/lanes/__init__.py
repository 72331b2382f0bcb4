"""Lanes: every rank's steps as a picture of the cadence, from traces or from a running server."""

from onbeat_engine.lanes.html import payload, render
from onbeat_engine.lanes.read import read_lanes
from onbeat_engine.lanes.summary import Summary, headline, summarize
from onbeat_engine.wire.lane_steps import LaneRing, Lanes, LaneStep, idle_step, lane_step
from onbeat_engine.wire.lane_tracker import LaneTracker

__all__ = [
    "LaneRing",
    "LaneStep",
    "LaneTracker",
    "Lanes",
    "Summary",
    "headline",
    "idle_step",
    "lane_step",
    "payload",
    "read_lanes",
    "render",
    "summarize",
]
