"""Settings of a run: frozen dataclasses with a docstring per field.

The docstrings are the help of the command line and docs/config.md. Sizes, counts and kinds are
static: they are fixed for the whole run. Floats marked `tunable` are traced; they may change when a
run resumes, and can be vmapped over.
"""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from purejaxppo.config import checks, env_objects, references
from purejaxppo.config.plain import plain, whole
from purejaxppo.config.references import CodeRef

Scalar = bool | int | float | str

if TYPE_CHECKING:
    Code = Any
    OptionValue = Any
else:
    Code = str
    OptionValue = Scalar | list | dict | None
"""`Code` is a reference to custom code: `file.py:Name`, `package.module:Name` or, in Python, the
object. `OptionValue` is an option of a task: plain data, as in YAML."""

Reduction = Literal["sum", "mean", "last"]
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
    """Return a dataclass field with its range and use. The docstring under it is its help.

    Args:
        default: the default value.
        low: the smallest allowed value; for a list, of each entry.
        above: values must be greater than this.
        high: the largest allowed value; for a list, of each entry. For integers it is far above any
            practical value, so a typo is an error instead of a run that never starts.
        tunable: True for a traced float, which may change when a run resumes, and can be vmapped
            over. Each one is a field of `types.Hyperparams`.
        free: True if it may change when a run resumes, because it does not affect learning.
        swept: True if a sweep may vary it.
        code: True if it may refer to custom code, as a string or a `references.CodeRef`.
        needs: the settings that give it an effect, such as "ppo.value_clipping = true",
            "ppo.num_epochs > 1" or "network.rnn = gru, lstm or mingru". A run that changes it
            without them prints a warning (`checks.without_effect`).
    """
    range_ = {"low": low, "above": above, "high": high}
    use = {"tunable": tunable, "free": free, "swept": swept, "code": code, "needs": needs}
    return field(default=default, metadata=range_ | use)


def section(kind: Any, *, free: bool = False, swept: bool = True) -> Any:
    """Return a dataclass field for a section; `free` and `swept` apply to all of its fields."""
    return field(default_factory=kind, metadata={"free": free, "swept": swept})


class Section:
    """A section of a config. Some of its fields may refer to custom code."""

    def __post_init__(self) -> None:
        """Convert numbers to Python numbers, and references to custom code to `CodeRef`."""
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
    """Return the fields of a section as a dict, with nested sections as nested dicts."""
    values = {f.name: getattr(section, f.name) for f in fields(section)}  # type: ignore[arg-type]
    return {name: as_data(x) if isinstance(x, Section) else x for name, x in values.items()}


def code_fields(section: Any) -> list[str]:
    """Return the names of the fields that may refer to custom code."""
    return [f.name for f in fields(section) if f.metadata.get("code")]


def is_list(value: Any) -> bool:
    """Return True for a list or plain tuple, False for a NamedTuple or another type."""
    return type(value) in (list, tuple)


@dataclass(frozen=True)
class EnvConfig(Section):
    """The environment."""

    name: Code = setting("", code=True)
    """Environment as family/task, for example gymnax/CartPole-v1. `purejaxppo list envs` prints the
    families, and `purejaxppo list envs gymnax` the tasks of gymnax. Custom environments:
    jax/file.py:Name for a task in JAX; gymnasium/file.py:Name, and the same with pettingzoo, brax,
    playground or gymnax, for the interface of that library."""
    num_envs: int = setting(256, low=1, high=2**24)
    """Number of environments that step in parallel. In a task with several agents, each agent
    counts as one."""
    backend: str = ""
    """Physics engine of the simulator. brax has spring, positional, generalized and mjx; playground
    has jax and warp. Empty: spring for brax, jax for playground."""
    max_episode_steps: int = setting(0, low=0, high=2**30)
    """Time limit of an episode, in steps. Reaching it truncates the episode. 0: the task's default
    limit."""
    reset: Literal["auto", "every_rollout", "every_step"] = "auto"
    """When the first states of episodes are computed. every_step: at every step, for every
    environment; those whose episode has ended use them. Always exact. every_rollout: before each
    rollout, one per environment, or ceil(16 / n) per environment if a shard has n < 16; each
    environment uses all of its shard's in turn. This is faster if resets are expensive, and exact
    while no environment starts more episodes in a rollout than its shard has first states. auto:
    every_step if the task's resets are cheap, otherwise every_rollout. For simulators in JAX."""
    stagger: bool = False
    """Start the first episode of each environment at a random step of the time limit, so time
    limits do not end all episodes at the same step (Rudin et al. 2022). Until these shorter
    episodes are over, charts/episodic_return is not comparable with eval/return_mean. For
    simulators in JAX."""
    obs_indices: tuple[int, ...] = setting((), low=0, high=2**24)
    """Indices of the entries of a vector observation that the agent observes, from 0. Empty: all.
    Use it to make a task partially observed. For simulators in JAX."""
    privileged_obs: bool = False
    """With env.obs_indices: return a Dict observation of `obs` (the selected entries) and `state`
    (all entries). Use network.actor_keys and network.critic_keys to give the critic more than the
    policy."""
    obs_parts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Parts of a vector observation by name, for network.actor_keys, network.critic_keys and
    network.input_hidden: {body: [0, 27], contact: [27, 105]}. As in Python, a range includes its
    first index and excludes its last: body has the entries 0 to 26. A part may have several ranges:
    [0, 3, 7, 9] has the entries 0, 1, 2, 7 and 8. Each entry must be in exactly one part. Agents
    and exported files still take the vector."""
    wrappers: tuple[Code, ...] = setting((), code=True)
    """Custom wrappers of a task in JAX, as a list of file.py:Wrap. Each takes a task and returns a
    task; the first one is innermost. For Gymnasium wrappers, use env.options."""
    options: dict[str, OptionValue] = field(default_factory=dict)
    """Options of the task, as name-value pairs. Values may be lists and mappings, as in
    --env.options.config '{lanes: 3}'. On the command line, options are added to those of the config
    file; --env.options without a value removes those."""
    randomize: dict[str, float] = field(default_factory=dict)
    """Parameters of the task to randomise in each episode, as name-value pairs. With value x, a
    parameter is sampled between 1 - x and 1 + x times its default (Tobin et al. 2017). Evaluations
    randomise, too."""
    curriculum: dict[str, str] = field(default_factory=dict)
    """Parameters that change during training, as name-value pairs. Values are `0.5 to 1.0` (linear
    over the run), `0.5 to 1.0 until 0.6` (linear over the first 60 % of the run), or
    file.py:function for a function of the progress from 0 to 1 (Bengio et al. 2009). Evaluations
    use the values at the end of the run."""
    metrics: dict[str, Reduction] = field(
        default_factory=dict, metadata={"free": True, "swept": False}
    )
    """Metrics of the task to log as env/NAME and eval/NAME: pairs of a name and a reduction over an
    episode: sum, mean or last. In gymnasium, pettingzoo and envpool, names are keys of numbers in
    `info`. Tasks in JAX log all their metrics; this setting changes the reductions."""
    mirror_obs: tuple[int, ...] = setting(
        (), low=-(2**24), high=2**24, needs="ppo.symmetry = augment or loss"
    )
    """Mirror image of an observation, for ppo.symmetry, as in [-1, -2, 4, 3]. Entry i is the
    position, counted from 1, of the value that replaces value i. A minus sign negates the value. A
    Dict observation is the concatenation of its parts, sorted by name. Empty: the built-in
    list, which some tasks have."""
    mirror_action: tuple[int, ...] = setting(
        (), low=-(2**24), high=2**24, needs="ppo.symmetry = augment or loss"
    )
    """Mirror image of an action, for ppo.symmetry. Continuous actions: as for env.mirror_obs.
    Discrete actions: for each action, the number of its mirror image, counted from 1."""

    def __post_init__(self) -> None:
        """Convert an environment in `name` to text and options, or to a `references.CodeRef`."""
        is_text = isinstance(self.name, str | CodeRef)
        ref = references.as_ref(self.name) if is_text else CodeRef("", self.name)
        if not ref.text and ref.object is not None:
            fields_ = env_objects.settings(ref.object, self.options, self.max_episode_steps)
            for name, value in fields_.items():
                object.__setattr__(self, name, value)
        super().__post_init__()


@dataclass(frozen=True)
class NetworkConfig(Section):
    """Policy and value networks."""

    hidden: tuple[int, ...] = setting((64, 64), low=1, high=2**16)
    """Widths of the hidden layers."""
    critic_hidden: tuple[int, ...] = setting(
        (), low=1, high=2**16, needs="network.torso = separate"
    )
    """Widths of the critic's hidden layers. Empty: the same as network.hidden."""
    activation: Literal["tanh", "relu", "swish", "gelu", "elu"] = "tanh"
    """Activation function of the hidden layers. Residual blocks always use relu."""
    torso: Literal["separate", "shared"] | Code = setting("separate", code=True)
    """Hidden layers of policy and critic. separate: each has its own. shared: both use the same.
    file.py:Net: a custom flax module from observations to features, used once for the policy and
    once for the critic, or a `Torso`."""
    block: Literal["plain", "residual"] = "plain"
    """Kind of hidden layers. plain: a linear layer and the activation per width in network.hidden.
    residual: a linear layer, then one normalised residual block per width (SimBa, Lee et al. 2024);
    all widths must be equal."""
    layer_norm: bool = setting(False, needs="network.block = plain")
    """Apply layer normalisation before the activation of each hidden layer."""
    rnn: Literal["none", "gru", "lstm", "mingru"] = "none"
    """Recurrent cell after the hidden layers, for tasks that need memory. mingru is a parallel scan
    over time (Feng et al. 2024), which is faster than gru and lstm for long sequences."""
    rnn_size: int = setting(64, low=1, high=2**16, needs="network.rnn = gru, lstm or mingru")
    """Width of the recurrent cell."""
    rnn_layers: int = setting(1, low=1, high=64, needs="network.rnn = gru, lstm or mingru")
    """Number of stacked recurrent cells. Those after the first are residual blocks with layer
    normalisation."""
    rnn_timescale: int = setting(100, low=0, high=2**24, needs="network.rnn = gru, lstm or mingru")
    """Longest memory of a recurrent unit at initialisation, in steps. Each unit gets a timescale
    between 2 and this (Tallec & Ollivier 2018). 0: 2 steps for all units."""
    actor_keys: tuple[str, ...] = ()
    """Keys of a Dict observation, or parts in env.obs_parts, that the policy sees. Empty: all."""
    critic_keys: tuple[str, ...] = ()
    """Keys of a Dict observation, or parts in env.obs_parts, that the critic sees. Empty: all. A
    critic that sees more than the policy is an asymmetric (privileged) critic (Pinto et al.
    2018)."""
    policies: dict[str, Scalar] = field(default_factory=dict)
    """With several agents: policies by agent, as pairs of a pattern of agents' names and the name
    of a policy. Each policy has its own network and critic. Empty: all agents share one policy."""
    input_hidden: tuple[int, ...] = setting((), low=1, high=2**16)
    """Widths of separate hidden layers for each key of a Dict observation, or each part in
    env.obs_parts, before they are concatenated. Empty: none."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the computation in encoder and hidden layers. bfloat16 is faster for large
    networks on GPUs and TPUs, and slower on CPUs. Parameters, optimiser, output layers and losses
    stay float32."""
    matmul_precision: Literal["same", "highest", "high", "default"] = "same"
    """Precision of float32 matrix products of the networks and their gradients; values as for
    matmul_precision. same: that of the run. Use it to keep the simulator exact and the networks
    fast."""
    encoder: Literal["auto", "mlp", "cnn_nature", "cnn_nips", "cnn_impala", "cnn_small"] = "auto"
    """Encoder of image observations. cnn_nature: three convolutions (Mnih et al. 2015). cnn_nips:
    two smaller ones (Mnih et al. 2013). cnn_impala: fifteen in residual blocks (Espeholt et al.
    2018). cnn_small: one 3x3 convolution with 16 channels, as for MinAtar. mlp: flatten the image.
    auto: cnn_nature, cnn_small or mlp, by the size of the image."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Position of an image's channel axis. auto: first if that axis is smaller than both others,
    otherwise last."""
    initializer: Literal["orthogonal", "lecun_normal"] = "orthogonal"
    """Initial weights. orthogonal: gain sqrt(2), 0.01 for the policy's output and 1 for the
    critic's, or 0 with ppo.critic = hl_gauss (Saxe et al. 2013). lecun_normal: flax's default. It
    does not apply to convolutions and recurrent cells."""
    distribution: Literal["gaussian", "tanh_gaussian", "beta"] | Code = setting(
        "gaussian", code=True
    )
    """Distribution of continuous actions. gaussian: samples are clipped to the bounds.
    tanh_gaussian: samples are squashed into the bounds by tanh. beta: a Beta distribution between
    the bounds (Chou et al. 2017). file.py:Name: a custom distribution."""
    std: Literal["independent", "dependent"] = setting(
        "independent", needs="network.distribution = gaussian or tanh_gaussian"
    )
    """Standard deviation of the policy. independent: one trainable parameter per action dimension.
    dependent: an output of the network."""
    init_std: float = setting(1.0, needs="network.distribution = gaussian or tanh_gaussian")
    """Standard deviation of the policy at the start."""
    min_std: float = setting(
        1e-3, above=0, needs="network.distribution = gaussian or tanh_gaussian"
    )
    """Lower limit of the policy's standard deviation."""
    max_std: float = setting(10.0, needs="network.distribution = gaussian or tanh_gaussian")
    """Upper limit of the policy's standard deviation."""


@dataclass(frozen=True)
class PPOConfig(Section):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    learner: Literal["ppo"] | Code = setting("ppo", code=True)
    """Update of the agent from a rollout. file.py:name: a custom `Learner`. Other settings of ppo
    have an effect only if the custom code reads them."""
    learning_rate: float = setting(3e-4, low=0, tunable=True)
    """Step size of the optimiser."""
    learning_rate_schedule: RateSchedule = setting("linear", code=True)
    """Schedule of the learning rate over total_timesteps. linear and cosine anneal to 0,
    exponential to a hundredth. step: a tenth after half of the run, a hundredth after three
    quarters. adaptive: after each update, raise or lower the rate to keep the mean KL divergence of
    updates near ppo.target_kl, between ppo.min_learning_rate and ppo.max_learning_rate (Rudin et
    al. 2022). file.py:function: a custom function from the progress, 0 to 1, to a factor."""
    min_learning_rate: float = setting(1e-5, above=0, needs="ppo.learning_rate_schedule = adaptive")
    """Smallest learning rate of the adaptive schedule. A smaller ppo.learning_rate, also in the
    warmup, is not raised to it."""
    max_learning_rate: float = setting(1e-2, above=0, needs="ppo.learning_rate_schedule = adaptive")
    """Largest learning rate of the adaptive schedule."""
    learning_rate_warmup: float = setting(0.0, low=0, high=1)
    """Fraction of the run, 0 to 1, in which the learning rate rises linearly to its schedule. 0: no
    warmup."""
    optimizer: (
        Literal["adam", "adamw", "nadam", "adabelief", "lion", "rmsprop", "sgd", "muon"] | Code
    ) = setting("adam", code=True)
    """Optimiser, by its name in optax, or file.py:function for a custom one. adam and adamw are the
    same here: weight decay is always decoupled from the gradient. rmsprop has a decay of 0.99;
    unlike PyTorch, it adds ppo.adam_eps before the square root. muon's steps are scaled to the size
    of Adam's."""
    weight_decay: float = setting(0.0, low=0)
    """Weight decay per unit of learning rate. It applies to matrices and convolutions, not to
    biases and scales."""
    gamma: float = setting(0.99, low=0, high=1, tunable=True)
    """Discount factor per step, see ppo.discount."""
    final_gamma: float = setting(0.0, low=0, high=1)
    """Discount at the end of the run. ppo.gamma changes linearly to this value; 0 keeps it
    constant. A short horizon speeds up learning at first, and a longer one later includes distant
    effects (idea: François-Lavet et al. 2015, who change 1 - gamma geometrically)."""
    discount: Literal["decision", "tick"] = "decision"
    """Unit of time of ppo.gamma. decision: once per step of the agent. tick: gamma to the power of
    the game's ticks until the next decision, for agents that decide at irregular times (Sutton et
    al. 1999): in unity/, or with a metric `ticks` of the environment."""
    gae_lambda: float = setting(0.95, low=0, high=1, tunable=True)
    """Lambda of generalised advantage estimation (Schulman et al. 2016)."""
    advantage: Literal["gae", "vtrace"] | Code = setting("gae", code=True)
    """Advantage estimator. gae: generalised advantage estimation. vtrace: corrects for rollouts of
    an older policy (Espeholt et al. 2018), for asynchronous = true; equal to gae for rollouts of
    the newest policy. file.py:function: a custom estimator."""
    clip_eps: float = setting(
        0.2, above=0, tunable=True, needs="ppo.objective = clip, dual_clip, spo or clip_kl"
    )
    """Clip range of the probability ratio: 1 - clip_eps to 1 + clip_eps."""
    clip_schedule: Schedule = setting(
        "constant", code=True, needs="ppo.objective = clip, dual_clip, spo or clip_kl"
    )
    """Schedule of ppo.clip_eps; values as for ppo.learning_rate_schedule, except adaptive."""
    objective: Literal["clip", "dual_clip", "spo", "kl", "clip_kl", "imitate"] | Code = setting(
        "clip", code=True
    )
    """Objective of the policy. clip: PPO's clipped surrogate. dual_clip: also bounds the ratio of
    actions with a negative advantage (Ye et al. 2020). spo: a quadratic penalty instead of the clip
    (Xie et al. 2024). kl: a penalty on the KL divergence from the old policy instead of the clip.
    clip_kl: clip and penalty. imitate: the likelihood of the actions, without reward.
    file.py:function: a custom objective."""
    terms: tuple[Code, ...] = setting((), code=True)
    """Custom auxiliary losses that are added to PPO's loss, as a list of file.py:name."""
    term_coefs: tuple[float, ...] = setting((), tunable=True)
    """Weights of ppo.terms, one per auxiliary loss. Empty: 1 for each."""
    kl_coef: float = setting(1.0, low=0, tunable=True, needs="ppo.objective = kl or clip_kl")
    """Weight of the KL penalty of the objectives kl and clip_kl."""
    dual_clip: float = setting(3.0, above=1, tunable=True, needs="ppo.objective = dual_clip")
    """Bound of the dual_clip objective on the ratio of actions with a negative advantage; greater
    than 1."""
    target_kl: float = setting(
        0.02, above=0, needs="ppo.early_stop_kl = true or ppo.learning_rate_schedule = adaptive"
    )
    """Target KL divergence from the old policy, for ppo.early_stop_kl and the adaptive learning
    rate."""
    early_stop_kl: bool = setting(False, needs="ppo.num_epochs > 1")
    """Skip the remaining epochs of an update after an epoch whose mean KL divergence exceeds
    ppo.target_kl."""
    early_stop_unit: Literal["step", "episode"] = setting("step", needs="ppo.early_stop_kl = true")
    """KL divergence that ppo.early_stop_kl compares with ppo.target_kl. step: the mean over the
    steps of an epoch, each before its gradient step. episode: the mean over episodes, or their
    parts in the rollout, of the divergence of all their actions, after the epoch (Bouftini &
    Benzaouia 2026). It grows with the length of episodes; start with ppo.target_kl = 1."""
    value_clipping: bool = False
    """Clip the change of the value estimate to ppo.vf_clip_eps. It is off by default because it
    usually hurts (Andrychowicz et al. 2021)."""
    vf_clip_eps: float = setting(0.2, above=0, tunable=True, needs="ppo.value_clipping = true")
    """Clip range of the change of the value estimate."""
    critic: Literal["scalar", "symlog", "hl_gauss", "popart"] = "scalar"
    """Output of the critic. scalar: the value. symlog: the symlog of the value (Hafner et al.
    2023), which is biased if returns vary. hl_gauss: a histogram of symlog values (Farebrother et
    al. 2024). popart: the value normalised by running statistics of the value targets (van Hasselt
    et al. 2016). Use one of the last three if returns are large or vary in scale."""
    value_limit: float = setting(0.0, low=0, needs="ppo.critic = hl_gauss")
    """Largest magnitude of a value in the bins of hl_gauss. 0: adapt it to the value targets so
    far, rounded up to 1.7, 6.4, 54, 2,980 or 8.9 million."""
    clip_bootstrap: Literal["none", "fixed", "observed"] = "none"
    """Limit the values that returns bootstrap from. none: no limit. fixed: to ±ppo.bootstrap_limit.
    observed: to the range of all value targets so far. Use it if the value estimate diverges."""
    bootstrap_limit: float = setting(100.0, above=0, needs="ppo.clip_bootstrap = fixed")
    """Largest magnitude of a bootstrapped value."""
    recompute_advantages: bool = setting(False, needs="ppo.num_epochs > 1")
    """Recompute the advantages before each epoch with the current critic."""
    vf_coef: float = setting(0.5, low=0, tunable=True)
    """Weight of the value loss. The value loss is half the mean squared error; hl_gauss: the
    cross entropy."""
    ent_coef: float = setting(0.0, low=0, tunable=True)
    """Weight of the entropy bonus."""
    ent_schedule: Schedule = setting("constant", code=True, needs="ppo.ent_coef > 0")
    """Schedule of ppo.ent_coef; values as for ppo.learning_rate_schedule, except adaptive."""
    intrinsic_coef: float = setting(1.0, low=0, tunable=True, needs="intrinsic.kind = icm or rnd")
    """Weight of the intrinsic reward, which is divided by the standard deviation of its discounted
    return."""
    intrinsic_schedule: Schedule = setting(
        "constant", code=True, needs="intrinsic.kind = icm or rnd"
    )
    """Schedule of ppo.intrinsic_coef; values as for ppo.learning_rate_schedule, except adaptive."""
    symmetry: Literal["none", "augment", "loss"] = "none"
    """Use of a task's mirror symmetry, given by built-in lists of the task or by env.mirror_obs and
    env.mirror_action (Mittal et al. 2024). augment: train on each minibatch and its mirror image.
    loss: penalise a policy that is not symmetric."""
    symmetry_coef: float = setting(1.0, low=0, tunable=True, needs="ppo.symmetry = loss")
    """Weight of the squared difference from the mirrored policy."""
    max_grad_norm: float = setting(0.5, low=0, tunable=True)
    """Gradients are scaled down to this global norm. 0: no limit."""
    adam_eps: float = setting(1e-5, above=0, needs="ppo.optimizer = adam, adamw, nadam or rmsprop")
    """Epsilon of Adam and related optimisers. The default is OpenAI Baselines' 1e-5 (Engstrom et
    al. 2020), not optax's 1e-8."""
    rollout_length: int = setting(128, low=1, high=2**24)
    """Steps of each environment per update."""
    reset_each_rollout: bool = False
    """Reset all environments at the start of each rollout, so no episode is longer than a rollout.
    If false, episodes continue from one rollout to the next. For simulators in JAX."""
    bptt_length: int = setting(0, low=0, high=2**24, needs="network.rnn = gru, lstm or mingru")
    """Number of steps over which the gradient of a recurrent network is propagated. It must divide
    ppo.rollout_length. 0: the whole rollout."""
    num_minibatches: int = setting(4, low=1, high=2**24)
    """Number of minibatches per epoch."""
    num_epochs: int = setting(4, low=1, high=2**16)
    """Number of passes over the data of a rollout."""
    epoch_fraction: float = setting(1.0, above=0, high=1)
    """Fraction of a rollout's steps in each epoch, steps with a decision first. Less than 1 saves
    time if agents in unity/ decide at few steps. Choose it above the fraction of steps with a
    decision, so that only steps without one are left out."""
    shuffle: Literal["transitions", "trajectories"] = setting(
        "transitions", needs="ppo.num_minibatches > 1"
    )
    """Unit that minibatches are sampled from. transitions: single steps. trajectories: whole
    rollouts of single environments, which is faster."""
    advantage_normalization: Literal["minibatch", "batch", "none"] = "minibatch"
    """Set over which advantages are normalised to mean 0 and standard deviation 1: each minibatch,
    the whole batch, or none."""
    normalize_obs: bool = True
    """Normalise observations by their running mean and standard deviation. This applies to
    observations with at most two axes, of any type, and not to images."""
    obs_preprocessing: Literal["by_bounds", "by_dtype"] = setting("by_bounds", swept=False)
    """Preprocessing of integer, byte and bool observations. by_bounds: the same as for float32;
    bytes from 0 to 255 that are not normalised are divided by 255. by_dtype: the rule of version
    0.2, for its runs: they are never normalised, and all bytes are divided by 255."""
    clip_obs: float = setting(10.0, above=0, needs="ppo.normalize_obs = true")
    """Normalised observations are clipped to this magnitude, in standard deviations."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    clip_reward: float = setting(10.0, above=0, needs="ppo.normalize_reward = true")
    """Normalised rewards are clipped to this magnitude."""
    reward_scale: float = setting(1.0, above=0)
    """Factor of the rewards that the agent learns from, after any normalisation. Reported returns
    and intrinsic rewards are not scaled."""

    @property
    def coefs(self) -> tuple[float, ...]:
        """Return the weight of each auxiliary loss."""
        return self.term_coefs or (1.0,) * len(self.terms)

    @property
    def sequence_length(self) -> int:
        """Return the sequence length of truncated backpropagation through time."""
        return self.bptt_length or self.rollout_length


@dataclass(frozen=True)
class IntrinsicConfig(Section):
    """Intrinsic reward (curiosity): a bonus for new observations."""

    kind: Literal["none", "icm", "rnd"] | Code = setting("none", code=True)
    """Intrinsic reward. icm: prediction error of the next observation's features (Pathak et al.
    2017). rnd: prediction error on a fixed random network (Burda et al. 2018). file.py:Name: a
    custom one."""
    hidden: tuple[int, ...] = setting(
        (64, 64), low=1, high=2**16, needs="intrinsic.kind = icm or rnd"
    )
    """Widths of the hidden layers of its networks."""
    features: int = setting(32, low=1, high=2**16, needs="intrinsic.kind = icm or rnd")
    """Number of features that its networks compute from an observation."""
    learning_rate: float = setting(1e-3, above=0, needs="intrinsic.kind = icm or rnd")
    """Step size of its Adam optimiser."""
    num_minibatches: int = setting(4, low=1, high=2**24, needs="intrinsic.kind = icm or rnd")
    """Number of its minibatches per epoch."""
    num_epochs: int = setting(1, low=1, high=2**16, needs="intrinsic.kind = icm or rnd")
    """Number of its passes over the data of a rollout."""


@dataclass(frozen=True)
class PretrainConfig(Section):
    """Imitation of a teacher before PPO starts."""

    teacher: str = ""
    """Run folder whose best agent is the teacher. It may observe other entries of the same vector
    (env.obs_indices) than the student. Empty: no imitation."""
    updates: int = setting(50, low=1, high=2**30, needs="pretrain.teacher")
    """Number of rollouts to learn from."""
    actor: Literal["student", "teacher"] = setting("student", needs="pretrain.teacher")
    """Agent that acts in the rollouts. student: the labels are the teacher's actions for the
    observations of the student, which then learns to correct its errors (DAgger, Ross et al. 2011).
    In custom losses (ppo.terms), `rows.action` is also the label. teacher: behavioural cloning, as
    in version 0.2."""


@dataclass(frozen=True)
class EvalConfig(Section):
    """Evaluation during training, on whole episodes in separate environments."""

    num_episodes: int = setting(32, low=0, high=2**20)
    """Episodes per evaluation. 0: no evaluation. Each agent of a multi-agent environment has its
    own episode: with A agents, the number is rounded up to a multiple of A."""
    interval: int = setting(0, low=0, high=2**50, needs="eval.num_episodes > 0")
    """Environment steps between evaluations. 0: a twentieth of total_timesteps."""
    stochastic: bool = False
    """Sample actions, as is usual for Atari. If false, take the mode of the distribution; for
    tanh_gaussian, the tanh of the Gaussian's mode."""
    options: dict[str, OptionValue] = field(default_factory=dict)
    """Options of the task in evaluations and videos only, as name-value pairs. They override
    env.options. Example: `opponent random` for a game that the agent learns by self-play."""
    max_steps: int = setting(1_000, low=1, high=2**30)
    """Steps after which an evaluation stops the episodes of a task without a time limit. Their
    returns so far count; eval/cut is the number of such episodes."""

    @property
    def policy(self) -> str:
        """Return "stochastic" or "deterministic", for printing."""
        return "stochastic" if self.stochastic else "deterministic"


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """Frequency and number of checkpoints."""

    interval: int = setting(0, low=0, high=2**50)
    """Environment steps between checkpoints. 0: a tenth of total_timesteps, and at least ten
    seconds apart if checkpoint.keep is 2 or less. A run also saves one at its end, on Ctrl-C,
    SIGTERM and SIGHUP."""
    max_seconds: float = setting(300.0, above=0)
    """Longest time between two checkpoints, in seconds."""
    keep: int = setting(2, low=1, high=2**30)
    """Number of latest checkpoints to keep on disk. Each also contains the best agent so far."""


@dataclass(frozen=True)
class LoggingConfig(Section):
    """Metrics, videos, loggers and log files."""

    interval: int = setting(0, low=0, high=2**50)
    """Environment steps between rows of metrics. 0: a hundredth of total_timesteps."""
    video_interval: int = setting(0, low=0, high=2**50)
    """Environment steps between videos of one episode of the current agent, played as in
    evaluations: videos/STEPS.mp4 in the run folder, TensorBoard and W&B. With several agents,
    the first one is shown. 0: no videos. Needs the render extra. Several processes are not
    supported."""
    tensorboard: bool = True
    """Write TensorBoard events to the run folder."""
    wandb_project: str = ""
    """Weights & Biases project to log to; needs the wandb extra. Empty: off. A row is sent once a
    checkpoint covers it (checkpoint.interval), so a killed run resumes at the right step. With
    several agents, each is a separate W&B run; above 256 agents, only their mean is logged."""
    wandb_group: str = setting("", needs="logging.wandb_project or logging.loggers")
    """Group of the W&B runs. Empty: the name of the sweep, or of a run with several agents."""
    wandb_tags: tuple[str, ...] = setting((), needs="logging.wandb_project")
    """Tags of the W&B runs."""
    wandb_notes: str = setting("", needs="logging.wandb_project")
    """Notes of the W&B runs."""
    loggers: tuple[Code, ...] = setting((), code=True)
    """Custom loggers, as a list of file.py:Name of classes derived from `purejaxppo.Logger`. They
    receive the rows of metrics and the videos. An error in a logger does not end the run."""
    log_file: str = ""
    """File for debug messages inside the run folder; its name ends in .log. Empty: none."""


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
    ppo.rollout_length rows. Rows that reset an environment are not counted as steps, so the final
    count is lower by one per episode. In unity/, where agents may be absent, a run ends after this
    number of decisions, or 100 times as many rows."""
    seed: int = setting(0, low=0, high=2**31 - 1, swept=False)
    """Seed of all random numbers."""
    num_seeds: int = setting(1, low=1, high=2**12, swept=False)
    """Number of agents to train in parallel in one program, with the seeds seed, seed + 1 and so
    on."""
    asynchronous: bool = setting(False, swept=False)
    """Collect the next rollout while learning from the last one, with parameters that are one
    update old. Use it for slow host simulators. Simulators in JAX, several seeds and several
    processes are not supported. Results differ slightly."""
    num_shards: int = setting(0, low=0, high=2**16, swept=False)
    """Number of parts that the environments are divided into, each with its own random keys.
    Several shards may share a device. Results depend on this number, not on the number of devices.
    0: the largest number up to one per device that divides environments and minibatches evenly and
    gives each shard at least 64 rows of a minibatch (4,096 on GPUs and TPUs). Devices are first
    used for seeds. Host simulators have one shard per process."""
    matmul_precision: Literal["highest", "high", "default"] = setting("highest", swept=False)
    """Precision of float32 matrix products and convolutions, including the simulator's, as in JAX.
    highest: float32. high: TF32 on NVIDIA GPUs, three bfloat16 passes on TPUs. default: the
    fastest, which is TF32 on NVIDIA GPUs and one bfloat16 pass on TPUs. All are the same on
    CPUs."""
    gpu: dict[str, Scalar] = section(dict, free=True, swept=False)
    """Values of settings that a run on a GPU uses instead, by dotted name: `env.num_envs: 4096`.
    Flags on the command line override them. If a flag sets another env.name, those of the config
    file are ignored. The run's config.yaml contains the values in use."""
    devices: int = setting(0, low=0, high=1024, free=True, swept=False)
    """Number of devices to use. 0: all. On a CPU, each core is a device."""
    keep_cores_awake: bool = setting(False, free=True, swept=False)
    """Run a busy process of the lowest priority (SCHED_IDLE) on each CPU core, so cores do not
    sleep while they wait for each other. Faster on virtual machines. Linux only."""
    callbacks: tuple[Code, ...] = setting((), code=True, free=True, swept=False)
    """Custom callbacks, as a list of file.py:Name. They are called between chunks of training, and
    can add metrics and stop the run."""
    init_from: str = setting("", swept=False)
    """Run folder whose agent this run starts from (warm start), for example with another reward,
    terrain or number of environments. The optimiser and the schedules start from scratch. If that
    run has one agent, all seeds start from it. If it has several, this run needs as many seeds, and
    each seed starts from one of them; in a sweep, select one with init_member. Empty: random
    parameters."""
    init_checkpoint: str = setting("best", swept=False, needs="init_from")
    """Checkpoint of init_from: best, last, or its number of environment steps."""
    init_member: int = setting(-1, low=-1, high=2**12, swept=False, needs="init_from")
    """Agent of init_from, from 0, if that run trained several. -1: all agents."""
    init_parts: tuple[Literal["policy", "critic", "normalizers"], ...] = setting(
        ("policy", "critic", "normalizers"), swept=False, needs="init_from"
    )
    """Parts of the agent that the run starts from: the policy, the critic, and the normalizers (the
    statistics of observations and rewards). Other parts start from scratch."""
    run_dir: str = setting("", free=True, swept=False)
    """Folder of the run. Empty: runs/CONFIG-sSEED, followed by xNUM_SEEDS if num_seeds > 1. Without
    a config file, the task's name replaces CONFIG."""

    def __post_init__(self) -> None:
        """Build sections from mappings, and check all fields, alone and in combination.

        Raises:
            ValueError: a field, or a combination of fields, is invalid.
        """
        kinds: dict[str, Any] = {
            f.name: f.default_factory for f in fields(self) if is_dataclass(f.default_factory)
        }
        values = {name: getattr(self, name) for name in kinds}
        others = {name: x for name, x in values.items() if not isinstance(x, kinds[name])}
        for name, section_ in self._built(others, kinds).items():
            object.__setattr__(self, name, section_)
        super().__post_init__()
        checks.check(self)

    @staticmethod
    def _built(data: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
        """Return the sections of nested data by name."""
        if not data:
            return {}
        from purejaxppo.config.files import apply_overrides, build, check_names

        nested = apply_overrides({}, data)
        check_names(nested)
        return {name: build(kinds[name], value, f"{name}.") for name, value in nested.items()}

    def replace(self, **changes: Any) -> "Config":
        """Return a copy with changed values.

            config.replace(seed=1, ppo={"gamma": 0.98}, network={"hidden": [64, 64]})

        A section changes only the settings that it names. Dotted names work too, as in
        **{"ppo.gamma": 0.98}.

        Raises:
            ValueError: a name is unknown, or a value is invalid.
        """
        from purejaxppo.config.files import apply_overrides, from_dict

        return from_dict(apply_overrides(as_data(self), changes))

    @property
    def steps_per_update(self) -> int:
        """Return the number of rows per update, env.num_envs x ppo.rollout_length."""
        return self.env.num_envs * self.ppo.rollout_length

    @property
    def num_updates(self) -> int:
        """Return the number of updates for total_timesteps, rounded up."""
        return -(-self.total_timesteps // self.steps_per_update)


TUNABLE = tuple(f"ppo.{f.name}" for f in fields(PPOConfig) if f.metadata.get("tunable"))
"""Dotted names of the traced floats, which are the fields of `types.Hyperparams`."""


def flat_hints(cls: type, prefix: str = "") -> dict[str, Any]:
    """Return the type of each field of a nested dataclass, by dotted name."""
    hints, flat = get_type_hints(cls), dict[str, Any]()
    for name in (f.name for f in fields(cls)):
        hint, key = hints[name], f"{prefix}{name}"
        nested = isinstance(hint, type) and is_dataclass(hint)
        flat |= flat_hints(hint, f"{key}.") if nested else {key: hint}
    return flat


HINTS = flat_hints(Config)
"""The type of each config field, by dotted name."""
