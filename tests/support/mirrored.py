"""Mirror images of MuJoCo models in a plane through the origin, from their geometry."""

from typing import NamedTuple

import mujoco
import numpy as np

FREE, SLIDE = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_SLIDE)


class ModelMirror(NamedTuple):
    """Signed indices, counted from 1, that mirror the arrays of a model."""

    qpos: list[int]
    qvel: list[int]
    ctrl: list[int]


def mirrored(x, entries):
    """Return x [..., n] with value |entries[i]| at place i, negated where entries[i] < 0."""
    return np.sign(entries) * np.asarray(x)[..., np.abs(entries) - 1]


def _partners(model, data, flip):
    """Return the mirror image of each body; identical bodies at one place are swapped."""
    partner = {0: 0}
    for body in range(1, model.nbody):
        candidates = [
            other
            for other in range(1, model.nbody)
            if model.body_parentid[other] == partner[model.body_parentid[body]]
            and model.body_jntnum[other] == model.body_jntnum[body]
            and np.allclose(data.xpos[other], flip * data.xpos[body], atol=1e-3)
            and np.allclose(data.xipos[other], flip * data.xipos[body], atol=5e-3)
        ]
        partner[body] = max(candidates, key=lambda other, body=body: other != body)
    return partner


def model_mirror(model, normal):
    """Return the mirror of a model in the plane with a normal, axis 0 or 1.

    An axis of a hinge is an axial vector: its mirror image points the other way.
    """
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    flip = np.where(np.arange(3) == normal, -1, 1)
    partner = _partners(model, data, flip)
    qpos, qvel, images = [0] * model.nq, [0] * model.nv, {}
    for joint in range(model.njnt):
        body = model.jnt_bodyid[joint]
        other = joint - model.body_jntadr[body] + model.body_jntadr[partner[body]]
        q, v = model.jnt_qposadr, model.jnt_dofadr
        if model.jnt_type[joint] == FREE:
            signs = [*flip, 1, *-flip]
            qpos[q[joint] : q[joint] + 7] = signs * (q[other] + 1 + np.arange(7))
            qvel[v[joint] : v[joint] + 6] = [*flip, *-flip] * (v[other] + 1 + np.arange(6))
            continue
        axis = data.xaxis[joint] * flip * (1 if model.jnt_type[joint] == SLIDE else -1)
        sign = round(axis @ data.xaxis[other])
        assert sign in (-1, 1)
        qpos[q[joint]], qvel[v[joint]] = sign * (q[other] + 1), sign * (v[other] + 1)
        images[other] = sign, joint
    joints = model.actuator_trnid[:, 0].tolist()
    ctrl = [0] * model.nu
    for actuator, joint in enumerate(joints):
        if model.actuator_trntype[actuator] == mujoco.mjtTrn.mjTRN_JOINT:
            sign, other = images[joint]
            ctrl[joints.index(other)] = sign * (actuator + 1)
    return ModelMirror(qpos, qvel, ctrl)
