"""Every setting of a run: frozen dataclasses, one docstring per field, checked together.

The docstrings are the help of the command line and the reference in the docs. Sizes, counts and
kinds are structure: they are fixed for the life of a run. Floats marked `tunable` are traced, may
change when a run resumes, and can be vmapped over.
"""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from purejaxppo.config import checks, references
from purejaxppo.config.plain import plain, whole

Scalar = bool | int | float | str

if TYPE_CHECKING:
    Code = Any
else:
    Code = str
"""A reference to custom code: `file.py:Name`, `package.module:Name` or, in Python, the object."""

Schedule = Literal["constant", "linear", "cosine", "exponential", "step"] | Code
RateSchedule = Literal["constant", "linear", "cosine", "exponential", "step", "adaptive"] | Code


def setting(
    default: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    tunable: bool = False,
    free: bool = False,
    swept: bool = True,
    code: bool = False,
    needs: str = "",
) -> Any:
    """A field with its range and its use; the docstring under it describes it.

    Args:
        default: its value.
        low: the smallest value; of a list, of each entry.
        above: values are greater than this.
        high: the largest value; of a list, of each entry. Integers have one far above any
            practical value, so a typo is an error instead of a run that never starts.
        tunable: a float that is traced, may change on resume, and can be vmapped over; every one is
            a field of `types.Hyperparams`.
        free: may change when a run resumes, since what is learned does not depend on it.
        swept: True if a sweep may vary it.
        code: it may refer to custom code; then it holds a text or a `references.CodeRef`.
        needs: the settings without which it has no effect, such as "ppo.value_clipping = true",
            "ppo.num_epochs > 1" or "network.rnn = gru, lstm or mingru". A run that changes it
            without them prints a line (`checks.without_effect`).
    """
    range_ = {"low": low, "above": above, "high": high}
    use = {"tunable": tunable, "free": free, "swept": swept, "code": code, "needs": needs}
    return field(default=default, metadata=range_ | use)


def section(kind: Any, *, free: bool = False, swept: bool = True) -> Any:
    """A field that holds further fields, all `free` and `swept` as in `setting`."""
    return field(default_factory=kind, metadata={"free": free, "swept": swept})


class Section:
    """A section of fields, some of which may refer to custom code."""

    def __post_init__(self) -> None:
        """Replace numbers of other types by Python's, and objects by `references.CodeRef`."""
        for field_ in fields(self):  # type: ignore[arg-type]
            if not field_.metadata.get("code"):
                value = plain(getattr(self, field_.name))
                number = whole(value) if field_.type is int else None
                object.__setattr__(self, field_.name, value if number is None else number)
        for name in code_fields(type(self)):
            value = getattr(self, name)
            parsed = (
                tuple(map(references.parse, value)) if is_list(value) else references.parse(value)
            )
            object.__setattr__(self, name, parsed)


def as_data(section: Section) -> dict[str, Any]:
    """Return the fields of a section by name, of its own sections as nested dicts."""
    values = {f.name: getattr(section, f.name) for f in fields(section)}  # type: ignore[arg-type]
    return {name: as_data(x) if isinstance(x, Section) else x for name, x in values.items()}


def code_fields(section: Any) -> list[str]:
    """The fields of a section's class that may refer to custom code."""
    return [f.name for f in fields(section) if f.metadata.get("code")]


def is_list(value: Any) -> bool:
    """True for a list or a tuple that is no record, such as a NamedTuple of functions."""
    return type(value) in (list, tuple)


@dataclass(frozen=True)
class EnvConfig(Section):
    """The simulator."""

    name: Code = setting("", code=True)
    """family/task, as in gymnax/CartPole-v1; `purejaxppo list envs` prints families, and `list envs
    gymnax` one's tasks. Your own in JAX: jax/file.py:Name, and gymnax/file.py:Name for what has
    gymnax's interface."""
    num_envs: int = setting(256, low=1, high=2**24)
    """Environments that step in parallel; of a task with several agents, each agent counts."""
    backend: str = ""
    """Physics engine: brax has spring, positional, generalized, mjx; playground has jax, warp.
    Empty: the family's default."""
    max_episode_steps: int = setting(0, low=0, high=2**30)
    """Time limit in steps, a truncation; 0 keeps the task's own."""
    reset: Literal["auto", "every_rollout", "every_step"] = "auto"
    """Time at which starts of episodes are drawn. every_rollout: before each rollout, one per
    environment, or ceil(16 / n) per environment where a shard has n < 16; each environment takes
    all starts of its shard in turn as its episodes end (fast; exact while no environment begins
    more episodes within a rollout than its shard has starts). every_step: one for each episode
    (always exact). auto: every_step where a reset is cheap."""
    stagger: bool = False
    """Begin each environment's first episode at a random step of the time limit, so that
    time limits do not cut all episodes at once, again and again (as Rudin et al. 2022 do). These
    episodes are shorter: until they are over, charts/episodic_return is of shorter episodes than
    eval/return_mean. For simulators in JAX."""
    obs_indices: tuple[int, ...] = setting((), low=0, high=2**24)
    """Indices of the numbers of a vector observation that are observed, from 0 on; empty: all. The
    policy has to remember the others. For simulators in JAX."""
    privileged_obs: bool = False
    """With `obs_indices`: observe a Dict of `obs`, the numbers seen, and `state`, all of them, for
    a critic that may see more (network.actor_keys, network.critic_keys)."""
    wrappers: tuple[Code, ...] = setting((), code=True)
    """Your own wrappers of a task in JAX, as [file.py:Wrap], the first one innermost: each takes a
    task and is one. (Gymnasium's: env.options.)"""
    options: dict[str, Scalar] = field(default_factory=dict)
    """Further options that the task itself takes, as name value pairs. Flags are added to the
    config's; --env.options alone drops these."""
    randomize: dict[str, float] = field(default_factory=dict)
    """Parameters that every episode draws anew, as name value pairs: with x, between 1 - x and
    1 + x times their value (Tobin et al. 2017). Also in evaluations."""
    curriculum: dict[str, str] = field(default_factory=dict)
    """Parameters that change while a run goes on, as name value pairs: `0.5 to 1.0`, `0.5 to 1.0
    until 0.6` of the run, or file.py:function of progress from 0 to 1 (Bengio et al. 2009).
    Evaluations have them as they are at the end."""
    mirror_obs: tuple[int, ...] = setting(
        (), low=-(2**24), high=2**24, needs="ppo.symmetry = augment or loss"
    )
    """An observation in the mirror, for ppo.symmetry: for each of its values the place, from 1 on,
    of the one that takes it over, with a minus if its sign turns, as in [-1, -2, 4, 3]."""
    mirror_action: tuple[int, ...] = setting(
        (), low=-(2**24), high=2**24, needs="ppo.symmetry = augment or loss"
    )
    """An action in the mirror: as mirror_obs or, of n discrete actions, each one's image."""

    def __post_init__(self) -> None:
        """Replace an object by a `references.CodeRef` with the family's name."""
        object.__setattr__(self, "name", references.parse_env(self.name))
        super().__post_init__()


@dataclass(frozen=True)
class NetworkConfig(Section):
    """Policy and value networks."""

    hidden: tuple[int, ...] = setting((64, 64), low=1, high=2**16)
    """Widths of the hidden layers."""
    critic_hidden: tuple[int, ...] = setting(
        (), low=1, high=2**16, needs="network.torso = separate"
    )
    """Widths of the critic's hidden layers; empty: the same as `hidden`."""
    activation: Literal["tanh", "relu", "swish", "gelu", "elu"] = "tanh"
    """Nonlinearity of the hidden layers."""
    torso: Literal["separate", "shared"] | Code = setting("separate", code=True)
    """Layers of policy and value: their own, or shared ones. Your own: a network from observations
    to features, of which policy and critic have one each, or a `Torso`."""
    block: Literal["plain", "residual"] = "plain"
    """residual: a linear layer, then per width of `hidden` (all the same) a residual block with
    normalisation (Lee et al. 2024, SimBa)."""
    layer_norm: bool = setting(False, needs="network.block = plain")
    """Layer normalisation after each hidden layer of plain ones."""
    rnn: Literal["none", "gru", "lstm", "mingru"] = "none"
    """Recurrent cell behind the hidden layers. mingru is a parallel scan over time: faster where
    stretches are long (Feng et al. 2024)."""
    rnn_size: int = setting(64, low=1, high=2**16, needs="network.rnn = gru, lstm or mingru")
    """Width of the recurrent cell."""
    rnn_timescale: int = setting(100, low=0, high=2**24, needs="network.rnn = gru, lstm or mingru")
    """Steps that its units remember at first, each its own number from 1 to this (Tallec & Ollivier
    2018); 0: about one."""
    actor_keys: tuple[str, ...] = ()
    """Parts of a Dict observation that the policy sees; empty: all."""
    critic_keys: tuple[str, ...] = ()
    """Parts of a Dict observation that the critic sees; empty: all. More than the policy's make
    the critic a privileged one (Pinto et al. 2018)."""
    policies: dict[str, Scalar] = field(default_factory=dict)
    """With several agents, which of them share a policy: patterns of agents' names, and names of
    policies. Empty: all share one. Each policy has a network of its own, critic included."""
    input_hidden: tuple[int, ...] = setting((), low=1, high=2**16)
    """Widths of layers of its own that each part of a Dict observation goes through before the
    parts are joined; empty: none."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which encoder and hidden layers compute. Under bfloat16 parameters, optimiser, the
    heads (distribution parameters, values) and losses stay float32. Faster on accelerators with
    large networks, slower on CPUs."""
    matmul_precision: Literal["same", "highest", "high", "default"] = "same"
    """Of the networks' float32 products and their gradients, so that they may be faster than the
    simulator's are exact; same: as the run's matmul_precision."""
    encoder: Literal["auto", "mlp", "cnn_nature", "cnn_nips", "cnn_impala", "cnn_small"] = "auto"
    """Encoder of images: Mnih et al. 2015's three convolutions, the two narrower ones of their
    network of 2013, Espeholt et al. 2018's fifteen in residual blocks, or one 3x3 convolution of 16
    channels as in MinAtar. auto: by size, cnn_nature, cnn_small or mlp, which flattens them."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Axis of an image's channels. auto: first if that axis is smaller than both others."""
    initializer: Literal["orthogonal", "lecun_normal"] = "orthogonal"
    """Weights at the start: orthogonal with gains sqrt(2), 0.01 for the policy's head and 1 for
    the critic's (Saxe et al. 2013), or LeCun's normal everywhere, flax's default."""
    distribution: Literal["gaussian", "tanh_gaussian", "beta"] | Code = setting(
        "gaussian", code=True
    )
    """Continuous actions: a Gaussian whose samples are clipped at the bounds, one squashed by
    tanh, or a Beta distribution between the bounds (Chou et al. 2017)."""
    std: Literal["independent", "dependent"] = setting(
        "independent", needs="network.distribution = gaussian or tanh_gaussian"
    )
    """independent: the standard deviation is a parameter. dependent: an output of the network."""
    init_std: float = setting(1.0, needs="network.distribution = gaussian or tanh_gaussian")
    """Standard deviation at the start."""
    min_std: float = setting(
        1e-3, above=0, needs="network.distribution = gaussian or tanh_gaussian"
    )
    """Lower limit of the standard deviation."""
    max_std: float = setting(10.0, needs="network.distribution = gaussian or tanh_gaussian")
    """Upper limit of the standard deviation."""


@dataclass(frozen=True)
class PPOConfig(Section):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    learning_rate: float = setting(3e-4, low=0, tunable=True)
    """The optimiser's step size."""
    learning_rate_schedule: RateSchedule = setting("linear", code=True)
    """Over total_timesteps, linear and cosine anneal to 0, exponential to a hundredth, and step
    goes down to a tenth at the half and a hundredth at three quarters. adaptive: change
    the rate at every gradient step to keep the divergence near target_kl (Rudin et al. 2022),
    within min_learning_rate and max_learning_rate.
    Your own: a function from progress, 0 to 1, to the factor."""
    min_learning_rate: float = setting(1e-5, above=0, needs="ppo.learning_rate_schedule = adaptive")
    """Smallest rate under the adaptive schedule."""
    max_learning_rate: float = setting(1e-2, above=0, needs="ppo.learning_rate_schedule = adaptive")
    """Largest rate under the adaptive schedule."""
    learning_rate_warmup: float = setting(0.0, low=0, high=1)
    """Part of the run in which the rate rises to its schedule, from the first update's share on."""
    optimizer: (
        Literal["adam", "adamw", "nadam", "adabelief", "lion", "rmsprop", "sgd", "muon"] | Code
    ) = setting("adam", code=True)
    """By its name in optax. adamw is adam: any weight decay is apart from the gradient. muon
    takes steps of Adam's size."""
    weight_decay: float = setting(0.0, low=0)
    """Per unit of learning rate, of matrices alone."""
    gamma: float = setting(0.99, low=0, high=1, tunable=True)
    """Discount per step."""
    gae_lambda: float = setting(0.95, low=0, high=1, tunable=True)
    """Trace decay of generalised advantage estimation (Schulman et al. 2016)."""
    advantage: Literal["gae", "vtrace"] | Code = setting("gae", code=True)
    """vtrace corrects advantages and value targets for rollouts of an older policy (Espeholt et
    al. 2018), for asynchronous runs; for a rollout of the newest policy it is gae."""
    clip_eps: float = setting(
        0.2, above=0, tunable=True, needs="ppo.objective = clip, dual_clip, spo or clip_kl"
    )
    """Range of the probability ratio, 1 - clip_eps to 1 + clip_eps."""
    clip_schedule: Schedule = setting(
        "constant", code=True, needs="ppo.objective = clip, dual_clip, spo or clip_kl"
    )
    """Of clip_eps, as for the learning rate."""
    objective: Literal["clip", "dual_clip", "spo", "kl", "clip_kl", "imitate"] | Code = setting(
        "clip", code=True
    )
    """clip: PPO's. dual_clip: also bounded for bad actions (Ye et al. 2020). spo: a quadratic
    penalty in place of the clip (Xie et al. 2024). kl: no clip, but a penalty on the divergence
    from the old policy. clip_kl: both. imitate: no reward, but the likelihood of the actions."""
    terms: tuple[Code, ...] = setting((), code=True)
    """Your own terms of the loss, as [file.py:name]."""
    term_coefs: tuple[float, ...] = setting((), tunable=True)
    """Weights of the terms, one for each; empty: 1."""
    kl_coef: float = setting(1.0, low=0, tunable=True, needs="ppo.objective = kl or clip_kl")
    """Weight of the divergence under the objectives kl and clip_kl."""
    dual_clip: float = setting(3.0, above=1, tunable=True, needs="ppo.objective = dual_clip")
    """Bound on the ratio of bad actions under dual_clip; above 1."""
    target_kl: float = setting(
        0.02, above=0, needs="ppo.early_stop_kl = true or ppo.learning_rate_schedule = adaptive"
    )
    """Divergence from the old policy that early_stop_kl and the adaptive learning rate aim at."""
    early_stop_kl: bool = setting(False, needs="ppo.num_epochs > 1")
    """Make no further epoch after one whose mean divergence is above target_kl."""
    value_clipping: bool = False
    """Clip the value's change around its old prediction, too (off by default: Andrychowicz et al.
    2021 found that it hurts)."""
    vf_clip_eps: float = setting(0.2, above=0, tunable=True, needs="ppo.value_clipping = true")
    """Range of the value's change under value_clipping."""
    critic: Literal["scalar", "symlog", "hl_gauss", "popart"] = "scalar"
    """Output of the critic. scalar: the value. symlog: its symlog (Hafner et al. 2023), biased
    where returns vary. hl_gauss: a histogram over symlog values (Farebrother et al. 2024), with
    the mean return as its mean. popart: the value in standard deviations of the targets so far
    (van Hasselt et al. 2016)."""
    value_limit: float = setting(0.0, low=0, needs="ppo.critic = hl_gauss")
    """Largest magnitude of a value in the bins of hl_gauss; 0: that of all value targets so far,
    rounded up to 1.7, 6.4, 54, 2,980 or 8.9 million."""
    clip_bootstrap: Literal["none", "fixed", "observed"] = "none"
    """Keep values that are bootstrapped from within ±bootstrap_limit, or within the range of all
    value targets so far."""
    bootstrap_limit: float = setting(100.0, above=0, needs="ppo.clip_bootstrap = fixed")
    """Largest magnitude of a bootstrapped value under clip_bootstrap = fixed."""
    recompute_advantages: bool = setting(False, needs="ppo.num_epochs > 1")
    """Compute advantages again before each epoch, with the critic at that time."""
    vf_coef: float = setting(0.5, low=0, tunable=True)
    """Weight of the value loss, which is half the mean squared error."""
    ent_coef: float = setting(0.0, low=0, tunable=True)
    """Weight of the entropy bonus."""
    ent_schedule: Schedule = setting("constant", code=True, needs="ppo.ent_coef > 0")
    """Of ent_coef, as for the learning rate."""
    intrinsic_coef: float = setting(1.0, low=0, tunable=True, needs="intrinsic.kind = icm or rnd")
    """Weight of the intrinsic reward, in standard deviations of its discounted returns."""
    intrinsic_schedule: Schedule = setting(
        "constant", code=True, needs="intrinsic.kind = icm or rnd"
    )
    """Of intrinsic_coef, as for the learning rate."""
    symmetry: Literal["none", "augment", "loss"] = "none"
    """Use of a task's mirror image, env.mirror_obs and env.mirror_action (Mittal et al.
    2024). augment: learn from each minibatch and its image. loss: a penalty on what the policy
    does otherwise in the mirror."""
    symmetry_coef: float = setting(1.0, low=0, tunable=True, needs="ppo.symmetry = loss")
    """Weight of the squared difference under symmetry = loss."""
    max_grad_norm: float = setting(0.5, low=0, tunable=True)
    """Gradients are scaled down to this global norm; 0 leaves them as they are."""
    adam_eps: float = setting(1e-5, above=0, needs="ppo.optimizer = adam, adamw, nadam or rmsprop")
    """Adam's epsilon (Engstrom et al. 2020 and OpenAI's baselines use 1e-5)."""
    rollout_length: int = setting(128, low=1, high=2**24)
    """Steps of each environment between updates."""
    reset_each_rollout: bool = False
    """Begin each rollout with new episodes, so that none is longer than a rollout; otherwise they
    go on from one rollout to the next. For simulators in JAX."""
    bptt_length: int = setting(0, low=0, high=2**24, needs="network.rnn = gru, lstm or mingru")
    """Steps that a recurrent network's gradient reaches back, within a rollout; 0: all of it."""
    num_minibatches: int = setting(4, low=1, high=2**24)
    """Parts that one epoch's data is divided into."""
    num_epochs: int = setting(4, low=1, high=2**16)
    """Passes over the data of a rollout."""
    shuffle: Literal["transitions", "trajectories"] = setting(
        "transitions", needs="ppo.num_minibatches > 1"
    )
    """Units of the minibatches: single steps, or whole environments' rollouts (faster)."""
    advantage_normalization: Literal["minibatch", "batch", "none"] = "minibatch"
    """Over what advantages get mean 0 and standard deviation 1."""
    normalize_obs: bool = True
    """Shift and scale vectors (observations of up to two axes, of any type) by their running mean
    and standard deviation."""
    obs_preprocessing: Literal["by_bounds", "by_dtype"] = setting("by_bounds", swept=False)
    """Preprocessing of integer, byte and bool observations. by_bounds: the same as for float32,
    except that bytes from 0 to 255 that are not normalised are divided by 255. by_dtype: the rule
    of version 0.2 and its runs: none are normalised, and all bytes are divided by 255."""
    clip_obs: float = setting(10.0, above=0, needs="ppo.normalize_obs = true")
    """Normalised observations are clipped to this many standard deviations."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    clip_reward: float = setting(10.0, above=0, needs="ppo.normalize_reward = true")
    """Normalised rewards are clipped to this magnitude."""
    reward_scale: float = setting(1.0, above=0)
    """Factor of the rewards that are learned from, after any normalisation. Returns that are
    reported, and intrinsic rewards, are not scaled."""

    @property
    def coefs(self) -> tuple[float, ...]:
        """The weight of each term."""
        return self.term_coefs or (1.0,) * len(self.terms)

    @property
    def stretch(self) -> int:
        """Steps of the stretches that recurrent networks learn from."""
        return self.bptt_length or self.rollout_length


@dataclass(frozen=True)
class IntrinsicConfig(Section):
    """A reward for what is new; its weight is ppo.intrinsic_coef."""

    kind: Literal["none", "icm", "rnd"] | Code = setting("none", code=True)
    """icm: surprise about what actions do (Pathak et al. 2017). rnd: observations that a network
    has not learned to imitate another on (Burda et al. 2018)."""
    hidden: tuple[int, ...] = setting(
        (64, 64), low=1, high=2**16, needs="intrinsic.kind = icm or rnd"
    )
    """Widths of its networks' hidden layers."""
    features: int = setting(32, low=1, high=2**16, needs="intrinsic.kind = icm or rnd")
    """Numbers that an observation is turned into."""
    learning_rate: float = setting(1e-3, above=0, needs="intrinsic.kind = icm or rnd")
    """Adam's step size."""
    num_minibatches: int = setting(4, low=1, high=2**24, needs="intrinsic.kind = icm or rnd")
    """Parts that one epoch's data is divided into."""
    num_epochs: int = setting(1, low=1, high=2**16, needs="intrinsic.kind = icm or rnd")
    """Passes over the data of a rollout."""


@dataclass(frozen=True)
class PretrainConfig(Section):
    """Behavioural cloning of a teacher before PPO begins."""

    teacher: str = ""
    """Folder of the run whose best agent is cloned; empty: none."""
    updates: int = setting(50, low=1, high=2**30, needs="pretrain.teacher")
    """Rollouts of the teacher that are learned from."""


@dataclass(frozen=True)
class EvalConfig(Section):
    """Evaluation during training: own environments, whole episodes."""

    num_episodes: int = setting(32, low=0, high=2**20)
    """Episodes per evaluation; 0 switches evaluation off."""
    interval: int = setting(0, low=0, high=2**50, needs="eval.num_episodes > 0")
    """Steps of training between evaluations; 0: a twentieth of total_timesteps."""
    stochastic: bool = False
    """Sample actions, as is usual for Atari, instead of taking the most likely one."""
    options: dict[str, Scalar] = field(default_factory=dict)
    """Options of the task in evaluations and films alone, beside and before env.options, as name
    value pairs: `opponent random` for a game that is learned by playing against itself."""
    max_steps: int = setting(1_000, low=1, high=2**30)
    """Steps after which an evaluation cuts the episodes of a task that has no time limit. Their
    returns so far count, and eval/cut is the number of such episodes."""

    @property
    def policy(self) -> str:
        """The kind of policy, in words."""
        return "stochastic" if self.stochastic else "deterministic"


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """Saves of a run."""

    interval: int = setting(0, low=0, high=2**50)
    """Steps of training between saves; 0: a tenth of total_timesteps, and where `keep` is 2 or
    less at least ten seconds. A save is also made at the end, on Ctrl-C, SIGTERM and SIGHUP."""
    max_seconds: float = setting(300.0, above=0)
    """A save is made at the latest after this many seconds."""
    keep: int = setting(2, low=1, high=2**30)
    """Number of the last saves on disk, beside the best."""


@dataclass(frozen=True)
class LoggingConfig(Section):
    """Metrics and logs of a run."""

    interval: int = setting(0, low=0, high=2**50)
    """Steps of training between rows of metrics; 0: a hundredth of total_timesteps."""
    tensorboard: bool = True
    """Write TensorBoard events into the run folder."""
    wandb_project: str = ""
    """Weights & Biases project to log to (needs the wandb extra); empty: off. Rows get there once
    a save covers them (checkpoint.interval), so that a run that was killed goes on at its step."""
    log_file: str = ""
    """A file for debug detail, inside the run folder; empty: none. Its name ends in .log."""


@dataclass(frozen=True)
class Config(Section):
    """One training run."""

    env: EnvConfig = section(EnvConfig)
    network: NetworkConfig = section(NetworkConfig)
    ppo: PPOConfig = section(PPOConfig)
    intrinsic: IntrinsicConfig = section(IntrinsicConfig)
    pretrain: PretrainConfig = section(PretrainConfig)
    eval: EvalConfig = section(EvalConfig, free=True, swept=False)
    checkpoint: CheckpointConfig = section(CheckpointConfig, free=True, swept=False)
    logging: LoggingConfig = section(LoggingConfig, free=True, swept=False)
    total_timesteps: int = setting(1_000_000, low=1, high=2**50, free=True)
    """Environment steps to train for, rounded up to whole updates of env.num_envs x
    ppo.rollout_length rows. Rows that reset an environment do not count as steps, so the final
    count is lower by one for each episode (an eighth in games of seven moves). In unity/, where
    agents may be absent, a run ends after this number of decisions, or 100 times as many rows."""
    seed: int = setting(0, low=0, high=2**31 - 1, swept=False)
    """Seed of everything random."""
    num_seeds: int = setting(1, low=1, high=2**12, swept=False)
    """Agents that train side by side in one program: with seed, seed + 1 and so on."""
    asynchronous: bool = setting(False, swept=False)
    """Collect the next rollout while learning from the last one, with parameters that are one
    update older: for slow simulators on the host. Changes the numbers a little."""
    num_shards: int = setting(0, low=0, high=2**16, swept=False)
    """Parts that the environments are divided into, each with its own keys; several may share a
    device. Part of the run's identity, so that a run gives the same curve on one device as on
    many. 0: one per device when the run starts."""
    matmul_precision: Literal["highest", "high", "default"] = setting("highest", swept=False)
    """Of float32 matrix products and convolutions, the simulator's too, in JAX's terms. highest:
    float32. high: TF32 on NVIDIA GPUs, three passes of bfloat16 on TPUs. default: the fastest,
    which is TF32 on NVIDIA GPUs, one pass of bfloat16 on TPUs. The same on CPUs."""
    gpu: dict[str, Scalar] = section(dict, free=True, swept=False)
    """Settings that a run on a GPU takes instead, by dotted name: `env.num_envs: 4096`. What is
    given on the command line goes before them. A run's config.yaml has those that it took."""
    devices: int = setting(0, low=0, high=1024, free=True, swept=False)
    """Devices to use; 0: all. On a CPU, cores are the devices."""
    keep_cores_awake: bool = setting(False, free=True, swept=False)
    """On Linux, run a busy process of the lowest class (SCHED_IDLE) on each core of a CPU, so that
    no core sleeps while it waits for another one. Faster on virtual machines."""
    callbacks: tuple[Code, ...] = setting((), code=True, free=True, swept=False)
    """Your own callbacks, each as file.py:Name: called between chunks of training, they may add
    metrics and stop the run."""
    run_dir: str = setting("", free=True, swept=False)
    """Folder of the run; empty: runs/<config>-s<seed>, with x<num_seeds> if there are several;
    without a config named after the task."""

    def __post_init__(self) -> None:
        """Checks fields against each other, before anything is compiled.

        Raises:
            ValueError: names the fields, the values found, and what would do.
        """
        super().__post_init__()
        checks.check(self)

    def replace(self, **changes: Any) -> "Config":
        """Copies the config with other values, by dotted name, such as **{"ppo.gamma": 0.98}.

        Raises:
            ValueError: an unknown name, or a value that does not fit; names what would do.
        """
        from purejaxppo.config.files import apply_overrides, from_dict

        return from_dict(apply_overrides(as_data(self), changes))

    @property
    def steps_per_update(self) -> int:
        """Environment steps in one rollout of all environments."""
        return self.env.num_envs * self.ppo.rollout_length

    @property
    def num_updates(self) -> int:
        """Updates that total_timesteps needs, rounded up."""
        return -(-self.total_timesteps // self.steps_per_update)


TUNABLE = tuple(f"ppo.{f.name}" for f in fields(PPOConfig) if f.metadata.get("tunable"))
"""Dotted names of the floats that are traced; `types.Hyperparams` holds them."""


def flat_hints(cls: type, prefix: str = "") -> dict[str, Any]:
    """The type of every field of a dataclass of sections and fields, by dotted name."""
    hints, flat = get_type_hints(cls), dict[str, Any]()
    for name in (f.name for f in fields(cls)):
        hint, key = hints[name], f"{prefix}{name}"
        nested = isinstance(hint, type) and is_dataclass(hint)
        flat |= flat_hints(hint, f"{key}.") if nested else {key: hint}
    return flat


HINTS = flat_hints(Config)
"""The type of every field of a config, by dotted name."""
