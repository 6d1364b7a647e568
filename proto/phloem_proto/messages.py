"""One struct per message on the bus. In order: requests, presence, links, then what travels over each link.

Conventions
    * ``ids``, ``pages``, ``slots``: little-endian uint32 bytes (`codec.pack_ids`).
    * ``rid``: 16 random bytes drawn by the gateway; never shown to a client.
    * ``attempt``: counted by the gateway per request from 1; a receiver drops what carries a lower one.
    * ``child``: 0..n-1, the choice of a request with n > 1.
    * ``deadline_ms``: milliseconds left when the message was sent; 0 = none. The gateway's clock decides.
    * ``offset``: index of the first output token of a frame, counted from the first generated token of that child.
    * Field order and types never change; new fields go to the end with a default.
    * Ranges below are checked when a message is decoded: what breaks one is malformed, whoever sent it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Numbers, terms, positions, milliseconds: far beyond any true one, and sums of a few still fit 64 bits."""
Rid = Annotated[bytes, msgspec.Meta(max_length=64)]
"""A request's id, which is kept for a while after its end."""
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
"""An instance's name: one token of a subject."""
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Real = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
"""A finite number: one row of a batch that is none must not spoil the others."""
Milliseconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
"""A measured time; no NaN."""
Size = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
"""Something there is at least one of."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=lambda name: name):
    """Base of everything that is sent: array-like, tagged by class name."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Base of what only occurs inside messages."""


# --- The nouns of a request -------------------------------------------------------------------------------------------


class SamplingParams(Part, frozen=True):
    """How to draw tokens. The ranges given here are the gateway's to check; a receiver may rely on finite numbers."""

    max_tokens: Count
    """0 = prefill only. Already cut to the context length."""
    temperature: Real = 1.0
    """0 = greedy. In [0, 2]."""
    top_p: Real = 1.0
    """In (0, 1]."""
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] = -1
    """-1 = whole vocabulary, else >= 1."""
    min_p: Real = 0.0
    """In [0, 1]."""
    frequency_penalty: Real = 0.0
    """In [-2, 2]; over output tokens."""
    presence_penalty: Real = 0.0
    """In [-2, 2]; over output tokens."""
    repetition_penalty: Real = 1.0
    """In [0.01, 2]; over prompt and output tokens."""
    min_tokens: Count = 0
    """End-of-sequence and stop ids can't be drawn before this many output tokens."""
    stop_token_ids: tuple[TokenId, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[TokenId, Real], ...] = ()
    """(token id, bias in [-100, 100])."""
    logprobs: Annotated[int, msgspec.Meta(ge=-1, le=2**16)] = -1
    """-1 = none; k >= 0 = logprob of each output token and of the k most likely."""
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=-1, le=2**16)] = -1
    """-1 = none; k >= 0 = the same for prompt tokens from ``logprob_start`` on."""
    logprob_start: Count = 0
    """First prompt position whose logprob is wanted (position 0 has none). Limits the cached prefix."""


class GrammarSpec(Part, frozen=True):
    """A constraint as the client gave it."""

    kind: str
    """``json_schema`` | ``json_object`` | ``regex`` (later: ``ebnf`` | ``structural_tag``)."""
    source: str
    """The schema as JSON text, the pattern, or "" for ``json_object``."""
    strict: bool = True


class Grammar(Part, frozen=True):
    """A judged grammar: what a worker needs to build its matcher."""

    digest: str
    """SHA-256 (hex) of kind, normalised source, options and tokenizer digest."""
    engine: str
    """``llguidance`` | ``xgrammar``."""
    kind: str
    source: str
    """The normalised source in the engine's own terms."""


class Held(Part, frozen=True):
    """What the client of one child already has (or the gateway has stored): the output so far."""

    ids: bytes = b""
    ended: bool = False
    """This choice has ended; it is not to be generated again."""


class TopLogprob(Part, frozen=True):
    """One alternative at a position."""

    id: int
    logprob: float
    piece: bytes = b""
    """The token's own bytes; filled by the detokeniser."""


class TokenLogprob(Part, frozen=True):
    """Logprob of one token, of the raw logits (before penalties, masks and temperature)."""

    id: int
    logprob: float
    """NaN for the first prompt token, which has none."""
    top: tuple[TopLogprob, ...] = ()
    piece: bytes = b""


class End(Part, frozen=True):
    """How a choice ended."""

    reason: str
    """``stop`` | ``length`` | ``abort`` | ``error``."""
    matched: int | str | None = None
    """The stop token id, or the stop string; None for end-of-sequence, length, abort and error."""
    code: str = ""
    """With ``abort``/``error``: an `ErrorInfo` code."""
    message: str = ""


class ErrorInfo(Part, frozen=True):
    """Why something was refused. Nothing in it may show a path, a stack or another request's text."""

    code: str
    """``invalid_request`` | ``prompt_too_long`` | ``grammar_invalid`` | ``grammar_unsupported`` | ``grammar_too_large`` | ``queue_full``
    | ``unavailable`` | ``draining`` | ``deadline`` | ``stale`` | ``busy`` | ``too_large`` | ``not_found`` | ``internal``."""
    message: str
    param: str = ""
    """The field at fault, in the bus's own terms (``messages``, ``ids``, ``grammar`` ...); the gateway translates it."""
    retry_after_ms: int = 0


# --- Presence ---------------------------------------------------------------------------------------------------------


class WorkerProfile(Part, frozen=True):
    """What a scheduler must know of a worker to plan for it."""

    page_size: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    """Tokens per KV page."""
    pages: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    """KV pages that may be planned (the worker keeps any scratch page of its own beside them)."""
    slots: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    """Slots, so the most rows that can be live."""
    max_step_tokens: Size
    """Most tokens (sum over rows) one plan may hold."""
    context_length: Size
    vocab_size: Size
    eos_ids: tuple[int, ...]
    dtype: str
    device: str


class Profile(Part, frozen=True):
    """What a peer is, exchanged on Beat and Hello. A mismatch of digests is refused and shown."""

    model: str
    """The served model's name."""
    model_digest: str = ""
    tokenizer_digest: str = ""
    sampler: str = ""
    """Version of the sampler's keyed draw (worker only)."""
    worker: WorkerProfile | None = None
    context_length: Count = 0
    """Scheduler: the least of its workers, 0 = none yet. Tokenizer: as the model's files say."""
    vocab_size: Count = 0


class Load(Part, frozen=True):
    """How busy a peer is, in its Beat."""

    in_flight: int = 0
    """Calls being served, or live requests (scheduler)."""
    capacity: int = 0
    """How many it would take at once."""
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    """Prompt tokens of waiting requests that are not cached."""
    pages_free: int = 0
    pages_cached: int = 0
    """Resident in the tree and evictable."""
    pages_used: int = 0
    pages_total: int = 0
    workers: int = 0
    """Scheduler: workers with a live link."""
    credit_requests: int = 0
    """Scheduler: how many live requests each gateway may have; above it a gateway answers 429 before tokenising."""
    credit_bytes: int = 0
    """Scheduler: how many bytes of prompt ids each gateway may have waiting."""
    retry_after_ms: int = 0
    """Scheduler: when a refused client should come back, from its backlog."""
    counters: dict[str, float] = {}
    """Monotonic totals by Prometheus name (``phloem_scheduler_evicted_tokens_total`` ...), shown on the gateway's /metrics."""
    grammars: int = 0
    """Scheduler: grammar instances present."""
    detokenisers: int = 0


class Beat(Message, frozen=True):
    """I am here. Sent each 250 ms (jittered) to ``all`` of each role that needs it."""

    state: str
    """``starting`` | ``ready`` | ``draining``."""
    profile: Profile
    load: Load = Load()
    term: Count = 0
    """Scheduler: its term n (0 = not leading)."""
    number: Count = 0
    """Counts the beats of this process from 1, so that one that is played back says nothing; 0 = not counted."""


class Goodbye(Message, frozen=True):
    """I leave now, on purpose."""


class Probe(Message, frozen=True):
    """Are you there? (a call)"""


class ProbeReply(Message, frozen=True):
    """Yes."""

    state: str = "ready"


# --- Links: reliable, ordered, one per pair ---------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """Open a link (a call from the side that initiates it). A new session replaces the pair's former one.

    A worker acknowledges only after draining its device and emptying slots, pages and matchers: its tree starts empty.
    """

    session: int
    """Random 64 bits, new at each Hello."""
    term: Count
    """The scheduler's term on its links; 0 on detokeniser-gateway links."""
    protocol_min: int
    protocol_max: int
    profile: Profile
    to: str = ""
    """Instance that is meant, so that nobody else takes one that is played back; "" = whoever gets it."""


class HelloReply(Message, frozen=True):
    """Answer to Hello: accepted, or ``error`` says why not (mismatch, ``fenced``, ``draining``)."""

    session: int
    profile: Profile
    error: ErrorInfo | None = None
    term: Count = 0
    """With ``fenced``: the term the receiver follows."""


class LinkFrame(Message, frozen=True):
    """One frame of a link.

    ``seq`` counts payload frames from 1; a frame with ``seq`` 0 carries no body (acknowledgement and keep-alive, each 100 ms). ``ack``
    is cumulative and means *applied*. ``last`` is the sender's highest ``seq``, so that a receiver sees a loss at the tail.
    """

    session: int
    term: Count
    seq: Count
    ack: Count
    last: Count
    body: bytes = b""
    """`codec.encode_body` of one message of that link's union."""
    reset: bool = False
    """This session is over, or unknown here: the receiver's end of the link is gone."""


# --- Calls: gateway -> tokenizer --------------------------------------------------------------------------------------


class ChatMessage(Part, frozen=True):
    """One message of a chat, content flattened to text by the gateway."""

    role: str
    content: str
    name: str = ""


class Encode(Message, frozen=True):
    """Text or chat to token ids. Exactly one of ``texts`` and ``messages`` is non-empty. Reply: `Encoded`."""

    texts: tuple[str, ...] = ()
    """Prompts, encoded as one batch."""
    messages: tuple[ChatMessage, ...] = ()
    """A chat, rendered by the model's template with a generation prompt."""
    add_special_tokens: bool = True
    """For ``texts`` only; a rendered template brings its own."""
    max_tokens: Count = 0
    """0 = no limit; else a prompt longer than this is refused (``prompt_too_long`` with both numbers)."""
    deadline_ms: Count = 0
    template_kwargs: str = ""
    """JSON object of extra variables for the template, "" = none."""
    tools: str = ""
    """JSON list of tools for the template, "" = none (later)."""


class Encoded(Message, frozen=True):
    """Answer to Encode: one ``ids`` per text (one in all for a chat)."""

    ids: tuple[bytes, ...] = ()
    error: ErrorInfo | None = None


class Detokenize(Message, frozen=True):
    """Token ids to text (a call). Reply: `Detokenized`."""

    ids: tuple[bytes, ...]
    skip_special_tokens: bool = True
    pieces: bool = False
    """Also the bytes of each token."""


class Detokenized(Message, frozen=True):
    """Answer to Detokenize, in order."""

    texts: tuple[str, ...] = ()
    pieces: tuple[tuple[bytes, ...], ...] = ()
    error: ErrorInfo | None = None


class OpenStream(Message, frozen=True):
    """The verb `open`, first half: make this tokenizer the request's detokeniser. Reply: `OpenReply`.

    Same attempt = same reply; lower = ``stale``; higher on a live stream = adopt: release from ``have`` on, to ``gateway``.
    """

    rid: Rid
    attempt: Count
    gateway: Name
    """Instance to which text frames go."""
    n: Count = 1
    have: tuple[Held, ...] = ()
    """Per child what the gateway holds; empty = nothing for all."""
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Keep the stop string in the text."""
    skip_special_tokens: bool = True
    logprobs: bool = False
    """Fill ``piece`` of logprob entries."""
    deadline_ms: Count = 0
    max_tokens: Count = 0
    """Most output tokens a child may have, so that its buffer is bounded."""


# --- Calls: gateway -> scheduler --------------------------------------------------------------------------------------


class Open(Message, frozen=True):
    """The verb `open`, second half: submit, retry, resume, re-route and replay are all this. Reply: `OpenReply`."""

    rid: Rid
    attempt: Count
    gateway: Name
    detokeniser: Name
    """Tokenizer instance to which output goes."""
    ids: bytes
    """Prompt token ids."""
    params: SamplingParams
    seed: int
    """Drawn by the gateway if the client gave none. The draw of (seed, child, output position) is fixed."""
    n: Count = 1
    have: tuple[Held, ...] = ()
    grammar: GrammarSpec | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    """Larger is sooner."""
    salt: str = ""
    """Cache namespace; requests with another salt never share pages."""
    deadline_ms: Count = 0
    age_ms: Count = 0
    """Since the client's request arrived."""
    cached_tokens: int = -1
    """What the first attempt reported; -1 = this is the first."""
    extra: str = ""
    """The other half of the cache namespace (``extra_key``)."""
    accepted: bool = False
    """Some attempt was accepted before: this one is not refused for want of room."""


class OpenReply(Message, frozen=True):
    """Answer to OpenStream and Open: accepted when ``error`` is None."""

    rid: Rid
    attempt: Count
    error: ErrorInfo | None = None


class Cancel(Message, frozen=True):
    """To scheduler and detokeniser: the gateway is done with (rid, attempt and lower), whatever the reason.

    Sent at every end, so that kept ids are released; leaves a tombstone of 60 s for a late open.
    """

    rid: Rid
    attempt: Count


class LiveRequest(Part, frozen=True):
    """One live request in a reconcile, with the output offset that the gateway holds per child."""

    rid: Rid
    attempt: Count
    offsets: tuple[int, ...]


class Live(Message, frozen=True):
    """Each second from a gateway to the scheduler (a call; split when large): these requests I hold. Reply: `LiveReply`."""

    requests: tuple[LiveRequest, ...]
    part: Count = 0
    parts: Count = 1
    number: Count = 0
    """Counts the lists of this process from 1, so that one that is played back says nothing; 0 = not counted."""


class LiveReply(Message, frozen=True):
    """Those of them that the scheduler does not know (twice in a row: the gateway opens them again), or has more of."""

    unknown: tuple[bytes, ...] = ()
    part: Count = 0
    ahead: tuple[LiveRequest, ...] = ()
    """Those, under the same attempt, of which a choice has more than the offset told: output tokens, an end counting as one.
    Again and again for 3 s, and nothing of that choice came meanwhile: the gateway opens the request again."""


class Flush(Message, frozen=True):
    """Empty every cache: only when idle, or wait up to ``timeout_ms`` for that. Reply: `FlushReply`."""

    timeout_ms: Count = 0


class FlushReply(Message, frozen=True):
    """Answer to Flush."""

    flushed_pages: int = 0
    error: ErrorInfo | None = None


class Pin(Message, frozen=True):
    """Keep the cached prefix of these tokens resident until the lease ends (a call). Reply: `PinReply`.

    An (owner, id) that is known is renewed: it keeps its prefix, ``ids`` may be empty, and only its end moves; with ``replace`` it gets the
    prefix of ``ids`` instead, and stays as it is if that can't be had. The prefix is what the tree holds now: whole pages of ``ids``. A lease
    also ends with its gateway, and when the worker that holds the pages goes.
    """

    owner: str
    """Whose lease it is: the scope of ``pin`` and of the limits. Never shown to another owner."""
    pin: str
    """Its id."""
    gateway: Name
    """Instance that speaks for the owner."""
    ttl_ms: Count
    ids: bytes = b""
    salt: str = ""
    extra: str = ""
    replace: bool = False


class Unpin(Message, frozen=True):
    """End a lease (a call). Reply: `PinReply`, with what it was or ``not_found``."""

    owner: str
    pin: str


class Pins(Message, frozen=True):
    """Which leases has this owner? (a call) Reply: `PinsReply`."""

    owner: str


class PinInfo(Part, frozen=True):
    """One lease."""

    pin: str
    tokens: int
    """Tokens kept: whole pages."""
    worker: str
    """Instance that holds them."""
    ttl_ms: int
    """What is left."""


class PinReply(Message, frozen=True):
    """Answer to Pin and Unpin. Over a limit: ``error.code`` is ``busy``."""

    info: PinInfo | None = None
    error: ErrorInfo | None = None


class PinsReply(Message, frozen=True):
    """Answer to Pins, oldest first."""

    pins: tuple[PinInfo, ...] = ()


class Radix(Message, frozen=True):
    """Show the tree (a call). Reply: `RadixReply`."""

    max_nodes: int = 200
    """At most this many nodes, those most in use first; in [1, 2000]."""
    edge_ids: int = 16
    """At most this many token ids of each edge; in [0, 64]."""


class RadixCopy(Part, frozen=True):
    """A node's KV on one worker."""

    worker: int
    """Index into `RadixReply.workers`."""
    locks: int
    hits: int
    """Requests that found it here."""


class RadixNode(Part, frozen=True):
    """One edge of the tree."""

    parent: int
    """Index into `RadixReply.nodes`, always a smaller one; -1 = the root of a namespace."""
    tokens: int
    """Length of the edge."""
    depth: int
    """Tokens from the root to the end of the edge."""
    wanted: int
    """Waiting choices whose prompts run through it."""
    ids: bytes = b""
    """The edge's first token ids; none if its namespace is salted."""
    copies: tuple[RadixCopy, ...] = ()
    """Empty = no worker has it: it is only wanted."""
    salted: bool = False
    pinned: int = 0
    """Leases on it or below it."""
    hidden: int = 0
    """Children that are not shown."""


class RadixWorker(Part, frozen=True):
    """One worker's cache and its share of the traffic."""

    instance: str
    pages: int
    pages_free: int
    pages_held: int
    """Owned by running requests alone."""
    pages_cached: int
    """In the tree."""
    pages_locked: int
    """In the tree and in use."""
    rows: int
    placed: int
    """Choices that were placed here since it joined."""
    prompt_tokens: int
    """Their known tokens."""
    cached_tokens: int
    """Those of them that were found here."""


class RadixReply(Message, frozen=True):
    """Answer to Radix."""

    page_size: int = 0
    nodes: tuple[RadixNode, ...] = ()
    workers: tuple[RadixWorker, ...] = ()
    total_nodes: int = 0
    total_tokens: int = 0
    """Cached, each prefix counted once."""
    namespaces: int = 0
    waiting: int = 0
    error: ErrorInfo | None = None


class KvWatch(Message, frozen=True):
    """Tell me of changes to the caches (a call). Events are published while somebody watches; a watch lasts 10 s and is renewed by repeating it.

    Reply: `KvWatchReply`.
    """

    watcher: Name
    """Instance that asks."""
    snapshot: bool = False
    """Also publish, once, all that is cached, as `KvEvents` with ``snapshot`` set."""


class KvWatchReply(Message, frozen=True):
    """Answer to KvWatch."""

    ttl_ms: int = 0
    error: ErrorInfo | None = None


class KvEvent(Part, frozen=True):
    """A change of one worker's cache. A block is a page; its hash names it and everything before it."""

    kind: str
    """``stored`` | ``removed`` | ``cleared``."""
    hashes: bytes = b""
    """One uint64, little-endian, per block, in order."""
    parent: int = 0
    """stored: hash of the block before the first; 0 = none."""
    ids: bytes = b""
    """stored: the blocks' token ids; empty if the namespace is salted."""


class KvEvents(Message, frozen=True):
    """Published by a scheduler to the group `KV`: changes of one worker's cache, in order.

    ``seq`` counts the messages of one (worker, incarnation) from 1: after a gap, ask for a snapshot. A snapshot's first message (``snapshot`` 1)
    replaces all that was known of that worker, those that follow it (2) add to it; ``seq`` is that of the last change it includes.
    """

    worker: str
    incarnation: int
    """Of the worker's session: a new one begins with an empty cache."""
    seq: Count
    block_size: int
    events: tuple[KvEvent, ...] = ()
    snapshot: int = 0


# --- Calls: scheduler -> grammar --------------------------------------------------------------------------------------


class Compile(Message, frozen=True):
    """Judge a grammar. Reply: `Verdict`."""

    spec: GrammarSpec
    deadline_ms: Count = 0
    rid: Rid = b""
    """Of the request that asked first, for log lines: others may wait for the same verdict."""


class Verdict(Message, frozen=True):
    """Answer to Compile. ``error`` set = refused; ``error.code == "busy"`` = ask another instance."""

    grammar: Grammar | None = None
    error: ErrorInfo | None = None
    compile_ms: float = 0.0
    memory_bytes: int = 0
    first_mask_ms: float = 0.0
    cached: bool = False


# --- Link scheduler <-> worker ----------------------------------------------------------------------------------------


class SlotOpen(Part, frozen=True):
    """Put a sequence into a slot. Takes effect at the launch of the plan that carries it, after that plan's closes."""

    slot: int
    generation: int
    """Counts uses of this slot; what belongs to another generation is ignored."""
    child: int
    ids: bytes
    """All known tokens: prompt, then held output."""
    prompt_tokens: int
    """How many of ``ids`` are prompt; the rest is output (for penalties, draw positions and the matcher's replay)."""
    committed: int
    """Tokens at the front whose KV is already in ``pages``."""
    pages: bytes
    """Page table so far, in order of position."""
    params: SamplingParams
    seed: int
    grammar: Grammar | None = None
    rid: Rid = b""
    """Of the request, for log lines."""


class Plan(Message, frozen=True):
    """One step. A difference to what the worker holds; everything in it takes effect at its own launch, in this order:
    ``closes``, ``opens``, page appends, then the forward over ``rows``.

    Rows are struct-of-arrays: row i belongs to slot ``rows[i]`` and takes ``counts[i]`` known tokens that have no KV yet (`extend`);
    count 0 = `decode`: the slot's newest token, whatever its value. A row whose known tokens are used up by this plan samples one token,
    others sample none. A plan covers pages for its rows.
    """

    step: Count
    """Counts plans of this session from 1."""
    rows: bytes
    counts: bytes
    closes: bytes = b""
    """Slots to be emptied."""
    opens: tuple[SlotOpen, ...] = ()
    page_slots: bytes = b""
    """Page appends: page ``page_ids[j]`` goes to the end of slot ``page_slots[j]``'s table."""
    page_ids: bytes = b""


class RowLogprobs(Part, frozen=True):
    """Logprobs that one row of a step yields: of its sampled token, or of prompt tokens."""

    row: int
    prompt: bool
    """True: of the prompt tokens at positions ``start`` on (each predicted by the token before it)."""
    start: int
    ids: bytes
    """The tokens themselves."""
    logprobs: bytes
    """float32 per token."""
    top: int = 0
    """Alternatives per token."""
    top_ids: bytes = b""
    """``top`` per token, row-major, most likely first."""
    top_logprobs: bytes = b""


class RowFailure(Part, frozen=True):
    """A row that can't go on; its slot yields nothing more."""

    row: int
    code: str
    """``nan`` | ``grammar_too_slow`` | ``grammar_failed``."""
    message: str


class Result(Message, frozen=True):
    """What a step yielded. Row i yielded ``yields[i]`` tokens (one byte each: 0 or 1; later up to 1 + k); ``ids`` holds them all in row order.

    0 for a row that should have drawn = "not now" (late mask): the same position runs again with the next decode row, idempotently.
    """

    step: Count
    yields: bytes
    ids: bytes
    grammar_ended: bytes = b""
    """uint32 rows whose matcher has ended: nothing more can be drawn; the choice ends with ``stop`` after this row's tokens."""
    logprobs: tuple[RowLogprobs, ...] = ()
    failures: tuple[RowFailure, ...] = ()
    forward_ms: Milliseconds = 0.0
    """Time of the forward pass and the draw on the device."""
    idle_ms: Milliseconds = 0.0
    """Time the device did nothing since its last step ended, its wait for a late draw included; 0 if nothing was live before the plan."""
    mask_ms: Milliseconds = 0.0


class StepFailed(Message, frozen=True):
    """The step and all later plans of the session are void; the scheduler opens a new session and plans anew."""

    step: Count
    message: str


# --- Link scheduler <-> detokeniser -----------------------------------------------------------------------------------


class TokenFrame(Part, frozen=True):
    """Output tokens of one child. An end rides with the last tokens, never alone (``ids`` may be empty if there are none)."""

    rid: Rid
    attempt: Count
    child: Count
    offset: Count
    ids: bytes
    end: End | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per id when asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """With the first frame of child 0, when asked for."""
    cached_tokens: int = 0
    """Prompt tokens found in the tree when the request was first picked."""


class Output(Message, frozen=True):
    """Scheduler to detokeniser: one per step, all requests together."""

    frames: tuple[TokenFrame, ...]


class StopAt(Message, frozen=True):
    """Detokeniser to scheduler: this child ends with its first ``keep`` output tokens; later ones are discarded.

    It beats any end of the scheduler at or after ``keep``.
    """

    rid: Rid
    attempt: Count
    child: Count
    keep: Count


# --- Link detokeniser <-> gateway -------------------------------------------------------------------------------------


class TextFrame(Part, frozen=True):
    """Text of one child, as the client may see it. Released text is a pure function of the output ids."""

    rid: Rid
    attempt: Count
    child: Count
    offset: Count
    """Index of the first id of ``ids``."""
    ids: bytes
    text: str
    """May lag behind ``ids`` (held back for a stop string or half a character)."""
    end: End | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0


class Text(Message, frozen=True):
    """Detokeniser to gateway: one per received Output and gateway."""

    frames: tuple[TextFrame, ...]


class Lost(Message, frozen=True):
    """To a gateway: the scheduler or detokeniser can't go on with these; open them again (not an end)."""

    rids: tuple[bytes, ...]
    reason: str = ""
    attempts: tuple[Count, ...] = ()
    """Of each of them, so that a later attempt is not given up for a former one; empty = whichever is live."""


# --- What each role may receive ---------------------------------------------------------------------------------------

Presence = Beat | Goodbye | Probe
GatewayInbox = Presence | Hello | LinkFrame | Lost | KvEvents
TokenizerInbox = Presence | Hello | LinkFrame | Encode | Detokenize | OpenStream | Cancel
SchedulerInbox = Presence | LinkFrame | Open | Cancel | Live | Flush | Pin | Unpin | Pins | Radix | KvWatch
WorkerInbox = Presence | Hello | LinkFrame
GrammarInbox = Presence | Compile

WorkerLinkUp = Result | StepFailed
"""Worker to scheduler, inside link frames."""
WorkerLinkDown = Plan
"""Scheduler to worker, inside link frames."""
DetokeniserLinkUp = StopAt
"""Detokeniser to scheduler, inside link frames."""
DetokeniserLinkDown = Output
"""Scheduler to detokeniser, inside link frames."""
GatewayLinkDown = Text
"""Detokeniser to gateway, inside link frames."""
GatewayLinkUp = Cancel | Live
"""Gateway to detokeniser, inside link frames: a cancel that is lost would leave a stream there until its deadline, and so would a late
`OpenStream` after a restart; `Live` names, now and then, all that the gateway holds there."""
