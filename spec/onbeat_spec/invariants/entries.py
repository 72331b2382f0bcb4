"""The entries of one rank: ids and statements, in the order that `onbeat spec` prints them."""

from onbeat_spec.catalogue import declare

declare(
    "decode-never-held",
    "A decode gets in a throttled step at least what it gets unthrottled from the same state (draft tokens aside).",
    "B12",
    "B19",
    "B24",
)
declare("resume-bypasses", "A ready remote resume is never held, wherever it stands in the queue.", "B01")
declare("saturation-opens", "On a saturated rank the throttled step equals the unthrottled one.", "B02", "B23")
declare(
    "off-means-off",
    "With interval 1, or throttle false, a step equals that of a scheduler without the feature.",
    "B112",
)
declare("no-decode-no-hold", "Without a decode that can run in this step nothing is held.", "B07")
declare(
    "no-empty-step",
    "A step schedules at least one token whenever the unthrottled step from the same state would.",
    "B07",
)
declare("one-token-passes", "A request with at most one token of local work is never held.", "B01", "B16")
declare(
    "flag-only-when-open",
    "The saturation flag changes only in a step that did not hold, did not preempt, and was not paused.",
    "B03",
)
declare(
    "flag-means-backlog",
    "The saturation flag is true iff admissible work was left by the step that wrote it.",
    "B02",
    "B13",
)
declare(
    "flag-lag",
    "When saturation begins or ends, the flag follows within interval steps, not counting from before a step that "
    "preempts or is paused.",
    "B02",
    "B03",
)
declare(
    "held-at-most",
    "No request is held more than interval - 1 steps in a row, and never more than max_hold_steps.",
    "B04",
    "B05",
    "B08",
)
declare("beat-equals-baseline", "On a beat the step equals the unthrottled one.", "B05")
declare(
    "order-kept",
    "No younger fresh prefill overtakes an older one, and skipped requests keep their order.",
    "B48",
    "B49",
)
declare(
    "throttle-never-evicts", "Whoever a throttled step preempts would have got no token in the unthrottled one either."
)
declare("budget", "A step's tokens, draft tokens counted, stay within max_num_batched_tokens.", "B19")
declare("slots", "Running requests, and with them all that hold a slot, stay within max_num_seqs.", "B34", "B69")
declare(
    "blocks-conserved",
    "Free and held blocks add up to the pool; no block is held twice unless shared by prefix; at rest none is held.",
    "B59",
    "B65",
)
declare("all-or-nothing", "A failed allocation changes nothing: who gets no tokens gets no blocks.", "B123")
declare("one-place", "Each live request is in exactly one of waiting, parked and running.", "B56")
declare(
    "visit-once", "Each running request that is not preempted in the step is considered exactly once.", "B38", "B56"
)
declare(
    "evicted-is-out",
    "A preempted request is absent from the step's output; its tokens, drafts and blocks return.",
    "B39",
    "B55",
)
declare("victim-can-pay", "Nobody is preempted for another unless that releases capacity to this attempt.", "B114")
declare(
    "full-sequence-fits",
    "Admission needs room for the whole known sequence beside what others were promised.",
    "B46",
    "B60",
    "B113",
)
declare("never-fits-refused", "What can never fit is refused with an error and blocks nobody.", "B44")
declare(
    "progress",
    "Not paused and with runnable work, at most two steps in a row schedule nothing, load nothing and end nothing.",
    "B53",
    "B62",
    "B63",
    "B64",
)
declare(
    "oldest-finishes",
    "Every preemption is caused by a better or older request or by the victim itself, and nobody preempts itself who "
    "holds the only blocks.",
    "B117",
    "B119",
)
declare(
    "exactly-once",
    "Every sampled token is delivered once and in order, also across preemption, abort and steps in flight.",
    "B40",
    "B43",
    "B59",
    by_proof=False,
)
declare("load-once", "A remote load starts at most once per allocation.", "B64", by_proof=False)
declare(
    "load-bounded",
    "A remote load ends by its deadline at the latest, and a failure counts as its end.",
    "B63",
    "B71",
    by_proof=False,
)
declare(
    "late-is-harmless",
    "A notice for an unknown or ended request, or a second one, changes nothing.",
    "B52",
    "B59",
    "B65",
    by_proof=False,
)
declare("no-crash", "No call with valid arguments raises.", "B40", "B59", "B65", by_proof=False)
