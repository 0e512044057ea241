# A square from -1 to 1 with a hunter and a prey. An episode ends when the prey is caught, or after
# `LIMIT` seconds, which its hunter reports as a time limit.
extends Node2D

const Runner := preload("res://runner.gd")
const CAUGHT := 0.12
const LIMIT := 10.0
const HURRY := 0.2  # that a second costs the hunter, and pays the prey

var hunter := Runner.new()
var prey := Runner.new()
var elapsed := 0.0


func _init() -> void:
	hunter.other = prey
	prey.other = hunter
	prey.hunts = false
	for runner in [hunter, prey]:
		runner.restart.connect(begin)
		add_child(runner)
	begin()


func begin() -> void:
	elapsed = 0.0
	for runner in [hunter, prey]:
		runner.place = Vector2(randf_range(-1, 1), randf_range(-1, 1))
		runner.velocity = Vector2.ZERO


func _physics_process(delta: float) -> void:
	var before := hunter.place.distance_to(prey.place)
	for runner in [hunter, prey]:
		runner.move(delta)
	var gap := hunter.place.distance_to(prey.place)
	var closer := before - gap - HURRY * delta
	hunter.reward += closer
	prey.reward -= closer
	elapsed += delta
	if gap < CAUGHT:
		hunter.reward += 1.0
		prey.reward -= 1.0
		finish({})
	elif elapsed >= LIMIT:
		finish({"truncated": true})
	queue_redraw()


func finish(info: Dictionary) -> void:
	for runner in [hunter, prey]:
		runner.done = true
		runner.info = info.duplicate()
		if info:
			runner.info["terminal_observation"] = runner.get_obs()
	begin()


func _draw() -> void:
	draw_rect(Rect2(-75, -75, 150, 150), Color.DIM_GRAY, false)
	draw_circle(70 * prey.place, 4, Color.GREEN)
	draw_circle(70 * hunter.place, 5, Color.RED if hunter.dash else Color.ORANGE)
