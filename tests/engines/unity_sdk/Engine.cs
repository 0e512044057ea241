// The part of Unity's engine that the package ML-Agents needs: components and their events, without
// physics or rendering. A call of gRPC goes over standard input and output: see relay.py.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;

namespace UnityEngine
{
    public enum HideFlags { None, HideInHierarchy }
    public enum RuntimeInitializeLoadType { AfterSceneLoad, BeforeSceneLoad, SubsystemRegistration }

    public class Object
    {
        public string name = "";
        public HideFlags hideFlags;

        public static void Destroy(Object one) { (one as GameObject)?.SetActive(false); }
        public static void DestroyImmediate(Object one) { Destroy(one); }
        public static void DontDestroyOnLoad(Object one) { }
    }

    public class Component : Object
    {
        public GameObject gameObject;

        public T GetComponent<T>() { return gameObject.GetComponent<T>(); }
        public T[] GetComponents<T>() { return gameObject.components.OfType<T>().ToArray(); }
        public T[] GetComponentsInChildren<T>() { return GetComponents<T>(); }
    }

    public class Behaviour : Component { }

    public class MonoBehaviour : Behaviour
    {
        internal bool isAwake;
        internal readonly int order;
        readonly Dictionary<string, Action> m_Events = new Dictionary<string, Action>();

        public MonoBehaviour()
        {
            order = GetType().GetCustomAttribute<DefaultExecutionOrder>(true)?.order ?? 0;
        }

        // Calls an event's method, which may be private and of a base class.
        internal void Send(string method)
        {
            if (!m_Events.ContainsKey(method))
            {
                m_Events[method] = Find(method);
            }
            m_Events[method]?.Invoke();
        }

        Action Find(string method)
        {
            const BindingFlags flags = BindingFlags.Instance | BindingFlags.Public |
                BindingFlags.NonPublic | BindingFlags.DeclaredOnly;
            for (var type = GetType(); type != typeof(MonoBehaviour); type = type.BaseType)
            {
                var found = type.GetMethod(method, flags, null, Type.EmptyTypes, null);
                if (found != null)
                {
                    return (Action)Delegate.CreateDelegate(typeof(Action), this, found);
                }
            }
            return null;
        }
    }

    public class GameObject : Object
    {
        internal static readonly List<GameObject> all = new List<GameObject>();
        internal readonly List<Component> components = new List<Component>();

        public bool activeSelf { get; private set; } = true;

        public GameObject(string name = "")
        {
            this.name = name;
            all.Add(this);
        }

        public T AddComponent<T>() where T : Component, new()
        {
            var component = new T { gameObject = this };
            components.Add(component);
            if (activeSelf && component is MonoBehaviour behaviour)
            {
                Enable(behaviour);
            }
            return component;
        }

        public T GetComponent<T>() { return components.OfType<T>().FirstOrDefault(); }

        public void SetActive(bool value)
        {
            if (value == activeSelf)
            {
                return;
            }
            activeSelf = value;
            foreach (var behaviour in components.OfType<MonoBehaviour>().OrderBy(x => x.order).ToList())
            {
                if (value)
                {
                    Enable(behaviour);
                }
                else
                {
                    behaviour.Send("OnDisable");
                }
            }
        }

        static void Enable(MonoBehaviour behaviour)
        {
            if (!behaviour.isAwake)
            {
                behaviour.isAwake = true;
                behaviour.Send("Awake");
            }
            behaviour.Send("OnEnable");
        }
    }

    public static class Player
    {
        // Ticks until somebody quits.
        public static void Run()
        {
            while (!Application.isQuitting)
            {
                var active = GameObject.all.Where(x => x.activeSelf).SelectMany(x => x.components);
                foreach (var one in active.OfType<MonoBehaviour>().OrderBy(x => x.order).ToList())
                {
                    if (!Application.isQuitting)
                    {
                        one.Send("FixedUpdate");
                    }
                }
            }
        }
    }

    public static class Application
    {
        public static event Action quitting;
        public static bool isEditor = false, isQuitting = false;
        public static int targetFrameRate;
        public static string dataPath = ".", unityVersion = "0";

        public static void Quit()
        {
            if (!isQuitting)
            {
                isQuitting = true;
                quitting?.Invoke();
            }
        }
    }

    public static class Debug
    {
        public static void Log(object text) { Console.Error.WriteLine(text); }
        public static void LogWarning(object text) { Log(text); }
        public static void LogError(object text) { Log(text); }
        public static void LogFormat(string text, params object[] x) { Log(string.Format(text, x)); }
        public static void LogWarningFormat(string text, params object[] x) { LogFormat(text, x); }
        public static void AssertFormat(bool ok, string text, params object[] x)
        {
            Assert(ok, string.Format(text, x));
        }
        public static void Assert(bool ok, object text = null)
        {
            if (!ok)
            {
                throw new Exception("assertion failed: " + text);
            }
        }
    }

    public static class Mathf
    {
        public static float Clamp(float x, float least, float most) { return Math.Min(Math.Max(x, least), most); }
        public static int Clamp(int x, int least, int most) { return Math.Min(Math.Max(x, least), most); }
        public static float Max(float a, float b) { return Math.Max(a, b); }
        public static int Max(int a, int b) { return Math.Max(a, b); }
        public static float Min(float a, float b) { return Math.Min(a, b); }
        public static int Min(int a, int b) { return Math.Min(a, b); }
        public static float Abs(float x) { return Math.Abs(x); }
    }

    public static class Random
    {
        static System.Random s_Random = new System.Random(0);
        public static void InitState(int seed) { s_Random = new System.Random(seed); }
        public static float value { get { return (float)s_Random.NextDouble(); } }
        public static float Range(float least, float most) { return least + value * (most - least); }
    }

    public class ScriptableObject : Object { }
    public static class Time { public static float timeScale = 1f; public static int captureFramerate; }
    public static class Screen { public static void SetResolution(int width, int height, bool full) { } }
    public static class QualitySettings { public static void SetQualityLevel(int level, bool now) { } }

    public struct Vector2 { public float x, y; }
    public struct Vector3 { public float x, y, z; }
    public struct Vector4 { public float x, y, z, w; }
    public struct Quaternion { public float x, y, z, w; }
    public struct Color { public float r, g, b; public Color(float r, float g, float b) { this.r = r; this.g = g; this.b = b; } }
    public struct Color32 { public byte r, g, b, a; public Color32(byte r, byte g, byte b, byte a) { this.r = r; this.g = g; this.b = b; this.a = a; } }
    public enum TextureFormat { RGB24 }
    public class Texture2D : Object
    {
        public int width, height;
        public TextureFormat format;
        public Texture2D(int width, int height, TextureFormat format, bool mips) { }
        public Color32[] GetPixels32() { throw new NotSupportedException(); }
        public void SetPixel(int x, int y, Color color) { throw new NotSupportedException(); }
        public void SetPixels32(Color32[] colors) { throw new NotSupportedException(); }
        public T[] GetRawTextureData<T>() { throw new NotSupportedException(); }
        public void Apply() { }
        public byte[] EncodeToPNG() { throw new NotSupportedException(); }
    }

    public interface ISerializationCallbackReceiver { void OnBeforeSerialize(); void OnAfterDeserialize(); }

    public class AddComponentMenu : Attribute { public AddComponentMenu(string name, int order = 0) { } }
    public class DefaultExecutionOrder : Attribute { public int order; public DefaultExecutionOrder(int order) { this.order = order; } }
    public class HelpURLAttribute : Attribute { public HelpURLAttribute(string url) { } }
    public class HideInInspector : Attribute { }
    public class RangeAttribute : Attribute { public RangeAttribute(float least, float most) { } }
    public class RequireComponent : Attribute { public RequireComponent(Type type) { } }
    public class SerializeField : Attribute { }
    public class TooltipAttribute : Attribute { public TooltipAttribute(string text) { } }
    public class SpaceAttribute : Attribute { }
    public class RuntimeInitializeOnLoadMethodAttribute : Attribute { public RuntimeInitializeOnLoadMethodAttribute(RuntimeInitializeLoadType type) { } }
}

namespace UnityEngine.Serialization
{
    [AttributeUsage(AttributeTargets.Field, AllowMultiple = true)]
    public class FormerlySerializedAsAttribute : Attribute { public FormerlySerializedAsAttribute(string name) { } }
}

namespace UnityEngine.Profiling
{
    public static class Profiler { public static void BeginSample(string name) { } public static void EndSample() { } }
    public class CustomSampler { public static CustomSampler Create(string name) { return new CustomSampler(); } public void Begin() { } public void End() { } }
}

namespace Grpc.Core
{
    public enum StatusCode { Unavailable, ResourceExhausted, DeadlineExceeded }
    public struct Status { public StatusCode StatusCode; }
    public class RpcException : Exception { public Status Status; }
    public class ChannelCredentials { public static readonly ChannelCredentials Insecure = null; }

    public class Channel
    {
        public Channel(string target, ChannelCredentials credentials) { }
        public System.Threading.Tasks.Task ShutdownAsync() { return System.Threading.Tasks.Task.FromResult(0); }
    }
}

namespace Unity.MLAgents.CommunicatorObjects
{
    using Google.Protobuf;
    using System.IO;

    public static class UnityToExternalProto
    {
        public class UnityToExternalProtoClient
        {
            static readonly Stream s_In = Console.OpenStandardInput(), s_Out = Console.OpenStandardOutput();

            public UnityToExternalProtoClient(Grpc.Core.Channel channel) { }

            // One message as its length, 4 bytes, and its bytes; the answer likewise.
            internal UnityMessageProto Exchange(UnityMessageProto message)
            {
                var data = message.ToByteArray();
                s_Out.Write(BitConverter.GetBytes(data.Length), 0, 4);
                s_Out.Write(data, 0, data.Length);
                s_Out.Flush();
                return UnityMessageProto.Parser.ParseFrom(Read(BitConverter.ToInt32(Read(4), 0)));
            }

            static byte[] Read(int count)
            {
                var data = new byte[count];
                for (int done = 0, more; done < count; done += more)
                {
                    more = s_In.Read(data, done, count - done);
                    if (more == 0)
                    {
                        throw new Grpc.Core.RpcException();
                    }
                }
                return data;
            }
        }
    }
}

// Stubs for parts of the package that are left out: inference, analytics, sensors from attributes.

namespace Unity.InferenceEngine
{
    public enum DeviceType { CPU }
    public class ModelAsset : UnityEngine.Object { }

    // Sensors write into lists here, and only the order of an image's numbers is of a tensor.
    public struct TensorShape
    {
        readonly int[] m_Sizes;
        public TensorShape(params int[] sizes) { m_Sizes = sizes; }
        public int length { get { return m_Sizes.Length; } }
        public int this[int i] { get { return m_Sizes[i]; } }
        public int Index(int n, int c, int h, int w) { return ((n * this[1] + c) * this[2] + h) * this[3] + w; }
    }

    public class Tensor
    {
        public TensorShape shape;
        public void CompleteAllPendingOperations() { }
    }

    public class Tensor<T> : Tensor
    {
        public T this[params int[] place] { set { throw new NotSupportedException(); } }
    }
}

namespace Unity.MLAgents
{
    internal class TimerStack
    {
        class Nothing : IDisposable { public void Dispose() { } }
        static readonly Nothing s_Nothing = new Nothing();
        public static readonly TimerStack Instance = new TimerStack();
        public IDisposable Scoped(string name) { return s_Nothing; }
        public void AddMetadata(string name, string value) { }
        public void SetGauge(string name, float value) { }
        public void SaveJsonTimers() { }
    }
}

namespace Unity.MLAgents.Inference
{
    internal class TensorProxy { public Unity.InferenceEngine.Tensor data; }

    internal static class TensorExtensions
    {
        public static int Channels(this Unity.InferenceEngine.TensorShape shape) { return shape[1]; }
        public static int Height(this Unity.InferenceEngine.TensorShape shape) { return shape[2]; }
        public static int Width(this Unity.InferenceEngine.TensorShape shape) { return shape[3]; }
    }

    internal class ModelRunner : IDisposable
    {
        public ModelRunner(Unity.InferenceEngine.ModelAsset model, Actuators.ActionSpec spec, Policies.InferenceDevice device, int seed, bool fixedChoice) { }
        public bool HasModel(Unity.InferenceEngine.ModelAsset model, Policies.InferenceDevice device) { return false; }
        public void Dispose() { }
    }
}

namespace Unity.MLAgents.Policies
{
    public enum InferenceDevice { Default }

    internal class SentisPolicy : RemotePolicy
    {
        public SentisPolicy(Actuators.ActionSpec spec, Actuators.ActuatorManager manager, Unity.InferenceEngine.ModelAsset model, InferenceDevice device, string name, bool fixedChoice) : base(spec, manager, name) { }
    }
}

namespace Unity.MLAgents.Analytics
{
    internal static class TrainingAnalytics
    {
        public static void SetTrainerInformation(string package, string protocol) { }
        public static void RemotePolicyInitialized(string name, IList<Sensors.ISensor> sensors, Actuators.ActionSpec spec, IList<Actuators.IActuator> actuators) { }
    }
}

namespace Unity.MLAgents.SideChannels
{
    internal class TrainingAnalyticsSideChannel : SideChannel
    {
        public TrainingAnalyticsSideChannel() { ChannelId = Guid.NewGuid(); }
        protected override void OnMessageReceived(IncomingMessage message) { }
    }
}

namespace Unity.MLAgents.Sensors.Reflection
{
    internal static class ObservableAttribute
    {
        public static List<ISensor> CreateObservableSensors(object one, bool own) { return new List<ISensor>(); }
    }
}
