// A game for the real package ML-Agents that writes the sums of its own episodes to a file.
//
//     mono game.exe --mlagents-port PORT [--sums FILE] [--agents N] [--period N] ...
//
// A line of the file is an episode with a decision: number of the agent and of the episode, return
// from the first decision on, decisions, and how it ended. All rewards are multiples of 1/64, so
// that sums are exact. An agent observes its goal, its age and, unless it is anonymous, its number and
// its episode's number.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using Unity.MLAgents;
using Unity.MLAgents.Actuators;
using Unity.MLAgents.Policies;
using Unity.MLAgents.Sensors;
using UnityEngine;

public class Walker : Agent
{
    public Game game;
    public int number;
    public int enabledAt = -1;
    public bool disableSoon;
    int m_Episode, m_Age, m_Limit, m_Calls;
    float m_Goal;
    double m_Sum;
    bool m_Open;

    int Best { get { return (m_Goal > -0.3f ? 1 : 0) + (m_Goal > 0.3f ? 1 : 0); } }
    int Forbidden { get { return (Best + 1) % 3; } }
    bool Decided { get { return m_Open && m_Calls > 0; } }

    // Writes an episode's line; `calls` of CollectObservations were for no decision.
    public void Finish(string end, int calls = 0)
    {
        if (m_Open && m_Calls > calls)
        {
            game.Write($"{number} {m_Episode} {m_Sum} {m_Calls - calls} {end}");
        }
        m_Open = false;
    }

    public void Forget() { m_Open = false; }

    public void Pay(float reward)
    {
        if (Decided)
        {
            m_Sum += reward;
        }
    }

    public override void OnEpisodeBegin()
    {
        Finish("truncated", 1);  // by MaxStep: this game has not ended it
        m_Episode++;
        m_Age = m_Calls = 0;
        m_Sum = 0;
        m_Open = true;
        m_Goal = UnityEngine.Random.Range(-0.8f, 0.8f);
        m_Goal = Academy.Instance.EnvironmentParameters.GetWithDefault("goal", m_Goal);
        m_Limit = game.length + (int)(UnityEngine.Random.value * game.spread);
    }

    public override void CollectObservations(VectorSensor sensor)
    {
        m_Calls++;
        sensor.AddObservation(m_Goal);
        sensor.AddObservation(m_Age / 100f);
        sensor.AddObservation(game.anonymous ? 0f : number / 100f);
        sensor.AddObservation(game.anonymous ? 0f : m_Episode / 10000f);
        if (number >= game.agents)  // of the second behaviour
        {
            sensor.AddObservation(-m_Goal);
        }
    }

    public override void WriteDiscreteActionMask(IDiscreteActionMask mask)
    {
        if (game.masks)
        {
            mask.SetActionEnabled(0, Forbidden, false);
        }
    }

    public override void OnActionReceived(ActionBuffers actions)
    {
        m_Age++;
        var reward = 0f;
        if (game.actions != "discrete")
        {
            reward += (float)Math.Floor(64 * (1 - Math.Abs(actions.ContinuousActions[0] - m_Goal))) / 64;
        }
        if (game.actions != "continuous")
        {
            var choice = actions.DiscreteActions[0];
            reward += choice == Best ? 1f : 0f;
            if (game.masks && Decided && choice == Forbidden)
            {
                game.Write($"forbidden {number} {m_Episode}");
            }
        }
        AddReward(reward);
        Pay(reward);
        if (m_Age < m_Limit)
        {
            return;
        }
        if (game.disable > 0 && m_Episode % game.disable == 0)
        {
            if (m_Episode % (2 * game.disable) == 0)  // ended, and disabled before the next decision
            {
                Finish("terminated");
                EndEpisode();
            }
            disableSoon = true;
        }
        else if (game.interrupt && m_Episode % 3 == 0)
        {
            Finish("truncated");
            EpisodeInterrupted();
        }
        else
        {
            Finish("terminated");
            EndEpisode();
        }
    }
}

public class Game : MonoBehaviour
{
    public static Dictionary<string, string> options = new Dictionary<string, string>();
    public int agents, length, spread, disable, pause, groupLength;
    public bool masks, interrupt, anonymous;
    public string actions;
    readonly List<Walker> m_Walkers = new List<Walker>();
    SimpleMultiAgentGroup m_Group;
    StreamWriter m_Sums;
    int m_Tick;

    static int Number(string name, int value)
    {
        return options.ContainsKey(name) ? int.Parse(options[name]) : value;
    }

    public void Write(string line)
    {
        m_Sums.WriteLine(line);
        m_Sums.Flush();
    }

    void Awake()
    {
        agents = Number("agents", 1);
        length = Number("length", 20);
        spread = Number("spread", 10);
        disable = Number("disable", 0);
        pause = Number("pause", 7);
        groupLength = Number("group", 0);
        masks = Number("masks", 0) > 0;
        interrupt = Number("interrupt", 0) > 0;
        anonymous = Number("anonymous", 0) > 0;
        actions = options.ContainsKey("actions") ? options["actions"] : "continuous";
        m_Sums = options.ContainsKey("sums") ? new StreamWriter(options["sums"], true) : StreamWriter.Null;
        if (groupLength > 0)
        {
            m_Group = new SimpleMultiAgentGroup();
        }
        Academy.Instance.OnEnvironmentReset += OnReset;
        for (var i = 0; i < agents * Number("behaviours", 1); i++)
        {
            m_Walkers.Add(MakeWalker(i));
        }
    }

    Walker MakeWalker(int number)
    {
        var second = number >= agents;
        var place = new GameObject($"walker {number}");
        place.SetActive(false);
        var behaviour = place.AddComponent<BehaviorParameters>();
        behaviour.BehaviorName = second ? "Runner" : "Walker";
        behaviour.TeamId = second ? 1 : 0;
        behaviour.BrainParameters.VectorObservationSize = second ? 5 : 4;
        behaviour.BrainParameters.ActionSpec = new ActionSpec(
            actions == "discrete" ? 0 : 1, actions == "continuous" ? null : new[] { 3 });
        var walker = place.AddComponent<Walker>();
        walker.game = this;
        walker.number = number;
        walker.MaxStep = Number("max-step", 0);
        var requester = place.AddComponent<DecisionRequester>();
        requester.DecisionPeriod = Number("period", 5);
        requester.DecisionStep = number * Number("offset", 0) % requester.DecisionPeriod;
        place.SetActive(true);
        m_Group?.RegisterAgent(walker);
        return walker;
    }

    void OnReset()
    {
        Write("reset");
        foreach (var walker in m_Walkers)
        {
            walker.Forget();
        }
    }

    void FixedUpdate()
    {
        m_Tick++;
        foreach (var walker in m_Walkers)
        {
            if (walker.disableSoon)
            {
                walker.disableSoon = false;
                walker.Finish("terminated");
                walker.gameObject.SetActive(false);
                walker.enabledAt = m_Tick + pause;
            }
            else if (walker.enabledAt >= 0 && m_Tick >= walker.enabledAt)
            {
                walker.enabledAt = -1;
                walker.gameObject.SetActive(true);
                m_Group?.RegisterAgent(walker);
            }
        }
        if (m_Group != null && m_Tick % 4 == 0)
        {
            m_Group.AddGroupReward(0.25f);
            foreach (Walker walker in m_Group.GetRegisteredAgents())
            {
                walker.Pay(0.25f);
            }
        }
        if (m_Group != null && m_Tick % groupLength == 0)
        {
            var interrupted = m_Tick % (2 * groupLength) == 0;
            foreach (Walker walker in m_Group.GetRegisteredAgents())
            {
                walker.Finish(interrupted ? "truncated" : "terminated");
            }
            if (interrupted)
            {
                m_Group.GroupEpisodeInterrupted();
            }
            else
            {
                m_Group.EndGroupEpisode();
            }
        }
        Academy.Instance.StatsRecorder.Add("Game/Tick", m_Tick, StatAggregationMethod.MostRecent);
    }

    public static void Main(string[] arguments)
    {
        for (var i = 0; i + 1 < arguments.Length; i++)
        {
            if (arguments[i].StartsWith("--"))
            {
                options[arguments[i].Substring(2)] = arguments[i + 1];
            }
        }
        new GameObject("game").AddComponent<Game>();
        Player.Run();
    }
}
