# A hunter or a prey. It steers in two directions, and a hunter may dash, which is faster and less
# nimble.
extends Node2D

signal restart

const SPEED := 0.6
const DASH := 1.6

var other: Node2D
var hunts := true
var policy_name := "shared_policy"
var place := Vector2.ZERO
var velocity := Vector2.ZERO
var steer := Vector2.ZERO
var dash := false
var wander := 0.0
var reward := 0.0
var done := false
var info := {}


func get_obs() -> Dictionary:
	var gap: Vector2 = other.place - place
	return {"obs": [gap.x, gap.y, velocity.x, velocity.y, place.x, place.y]}


func get_obs_space() -> Dictionary:
	return {"obs": {"size": [6], "space": "box"}}


# A prey's `dash` does nothing: with other actions the two could not be rows of one batch.
func get_action_space() -> Dictionary:
	return {
		"steer": {"size": 2, "action_type": "continuous"},
		"dash": {"size": 2, "action_type": "discrete"},
	}


func set_action(action: Dictionary) -> void:
	steer = Vector2(action["steer"][0], action["steer"][1])
	dash = hunts and action["dash"] == 1


func reset() -> void:
	restart.emit()


func move(delta: float) -> void:
	if not hunts and policy_name == "shared_policy":
		flee(delta)
	var wanted := steer.limit_length(1.0) * SPEED * (DASH if dash else 1.0)
	velocity = velocity.lerp(wanted, minf(1.0, (3.0 if dash else 8.0) * delta))
	place = (place + velocity * delta).clamp(-Vector2.ONE, Vector2.ONE)


# Wanders, and turns away from a hunter that is near.
func flee(delta: float) -> void:
	wander += randf_range(-6.0, 6.0) * delta
	steer = 0.5 * Vector2.from_angle(wander)
	var gap: Vector2 = place - other.place
	if gap.length() < 0.8:
		steer = (steer + 1.2 * gap.normalized()).limit_length(1.0)
