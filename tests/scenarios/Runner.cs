// Runs a scenario with the C# classes; README.md beside this file says what a scenario is.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

/// <summary>The script is wrong, or something happened that it does not expect.</summary>
public sealed class ScriptError : Exception
{
    public ScriptError(string message)
        : base(message)
    {
    }
}

/// <summary>Numbers in the notation of scripts and logs.</summary>
public static class Text
{
    public static long Integer(string text)
    {
        if (!long.TryParse(text, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out long value))
        {
            throw new ScriptError(text + " is not a whole number");
        }
        return value;
    }

    public static float Number(string text)
    {
        if (text.StartsWith("bits:", StringComparison.Ordinal))
        {
            uint bits = uint.Parse(text.Substring(5), NumberStyles.AllowHexSpecifier, CultureInfo.InvariantCulture);
            return BitConverter.ToSingle(BitConverter.GetBytes(bits), 0);
        }
        if (!double.TryParse(text, NumberStyles.Float, CultureInfo.InvariantCulture, out double value))
        {
            throw new ScriptError(text + " is not a number");
        }
        return (float)value;
    }

    public static long[] Shape(string text)
    {
        return text == "-" ? new long[0] : text.Split('x').Select(Integer).ToArray();
    }

    public static string Bits(float value)
    {
        return BitConverter.ToUInt32(BitConverter.GetBytes(value), 0).ToString("x8");
    }
}

/// <summary>A tensor of a script: an array, and the two kinds of values over it that steps accept.</summary>
public abstract class Held : IDisposable
{
    private FixedBufferOnnxValue fixedValue;

    public OrtValue Value { get; protected set; }

    /// <summary>The value for steps that write into given outputs.</summary>
    public FixedBufferOnnxValue Fixed => fixedValue ?? (fixedValue = MakeFixed());

    public static Held Over(string type, long[] shape, byte[] bytes)
    {
        switch (type)
        {
            case "float": return new Held<float>(shape, bytes, 4);
            case "float16": return new Held<Float16>(shape, bytes, 2);
            case "double": return new Held<double>(shape, bytes, 8);
            case "int64": return new Held<long>(shape, bytes, 8);
            case "int32": return new Held<int>(shape, bytes, 4);
            case "bool": return new Held<bool>(shape, bytes, 1);
            default: throw new ScriptError("there is no type " + type);
        }
    }

    public void Dispose()
    {
        Value.Dispose();
        fixedValue?.Dispose();
    }

    protected abstract FixedBufferOnnxValue MakeFixed();
}

/// <summary>A tensor over an array of the runner.</summary>
public sealed class Held<T> : Held
    where T : struct
{
    private readonly T[] elements;
    private readonly int[] dimensions;

    /// <param name="bytes">The elements, or null for zeros.</param>
    public Held(long[] shape, byte[] bytes, int size)
    {
        long count = shape.Aggregate(1L, (product, dim) => product * dim);
        if (bytes != null && bytes.Length != count * size)
        {
            throw new ScriptError("the tensor file has another size");
        }
        elements = new T[count];
        if (bytes != null)
        {
            bytes.CopyTo(MemoryMarshal.AsBytes(elements.AsSpan()));
        }
        dimensions = shape.Select(dim => (int)dim).ToArray();
        Value = OrtValue.CreateTensorValueFromMemory(elements, shape);
    }

    protected override FixedBufferOnnxValue MakeFixed()
    {
        return FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<T>(elements, dimensions));
    }
}

/// <summary>A tensor that the library created.</summary>
public sealed class Given : Held
{
    public Given(OrtValue value)
    {
        Value = value;
    }

    protected override FixedBufferOnnxValue MakeFixed()
    {
        throw new ScriptError("a step into given outputs takes tensors of 'tensor' and 'zeros' alone");
    }
}

public sealed partial class Runner
{
    private readonly string script;
    private readonly string data;
    private readonly string folder;
    private readonly string[] lines;
    private readonly TextWriter log;
    private readonly Dictionary<string, IDisposable> objects = new Dictionary<string, IDisposable>();
    private readonly Dictionary<string, Command> commands;
    private bool logging = true;
    private int line;

    private Runner(string script, string data, string folder, TextWriter log)
    {
        this.script = script;
        this.data = data;
        this.folder = folder;
        this.log = log;
        lines = File.ReadAllText(script, Encoding.UTF8).Split('\n');
        commands = Commands();
    }

    public static int Main(string[] arguments)
    {
        if (arguments.Length != 3)
        {
            Console.Error.WriteLine("usage: Runner.exe SCRIPT DATA OUT");
            return 1;
        }
        using (var log = new StreamWriter(Console.OpenStandardOutput(), new UTF8Encoding(false)) { NewLine = "\n" })
        {
            var options = new EnvironmentCreationOptions { logLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR };
            OrtEnv.CreateInstanceWithOptions(ref options);
            return new Runner(arguments[0], arguments[1], arguments[2], log).Run();
        }
    }

    private int Run()
    {
        try
        {
            RunLines(0, lines.Length, 0);
            return 0;
        }
        catch (Exception error)
        {
            string what = error is OnnxRuntimeException refused
                ? "error " + (int)refused.ErrorCode + ": " + SaidBy(refused)
                : error.Message;
            log.Flush();
            Console.Error.WriteLine(script + ":" + (line + 1) + ": " + lines[line].Trim() + ": " + what);
            return 1;
        }
        finally
        {
            foreach (IDisposable held in objects.Values)
            {
                held.Dispose();
            }
        }
    }

    private void RunLines(int begin, int end, long number)
    {
        for (int at = begin; at < end; ++at)
        {
            line = at;
            string[] tokens = Tokens(lines[at], number);
            if (tokens.Length == 0)
            {
                continue;
            }
            if (tokens[0] != "repeat")
            {
                RunLine(tokens);
                continue;
            }
            if (tokens.Length != 2 && tokens.Length != 3)
            {
                throw new ScriptError("wrong number of tokens");
            }
            int last = EndOf(at);
            long rounds = Text.Integer(tokens[1]);
            long first = tokens.Length == 3 ? Text.Integer(tokens[2]) : 0;
            for (long i = first; i < first + rounds; ++i)
            {
                RunLines(at + 1, last, i);
            }
            at = last;
        }
    }

    private void RunLine(string[] tokens)
    {
        if (tokens[0] != "fails")
        {
            RunCommand(tokens);
            return;
        }
        if (tokens.Length < 3)
        {
            throw new ScriptError("wrong number of tokens");
        }
        long code = Text.Integer(tokens[1]);
        try
        {
            RunCommand(tokens.Skip(2).ToArray());
        }
        catch (OnnxRuntimeException refused)
        {
            if ((long)refused.ErrorCode != code)
            {
                throw new ScriptError(
                    "expected an error of code " + code + ", found " + (int)refused.ErrorCode + ": " + SaidBy(refused));
            }
            Write("error " + code + " " + SaidBy(refused));
            return;
        }
        throw new ScriptError("expected an error of code " + code + ", found none");
    }

    /// <summary>The message of the library, without the code that C# puts in front of it.</summary>
    private static string SaidBy(OnnxRuntimeException refused)
    {
        string code = "[ErrorCode:" + refused.ErrorCode + "] ";
        if (!refused.Message.StartsWith(code, StringComparison.Ordinal))
        {
            throw new ScriptError("a message begins with " + code + ", found: " + refused.Message);
        }
        return refused.Message.Substring(code.Length);
    }

    private void RunCommand(string[] tokens)
    {
        if (!commands.TryGetValue(tokens[0], out Command command))
        {
            throw new ScriptError("there is no such command");
        }
        if (tokens.Length - 1 < command.Fewest || tokens.Length - 1 > command.Most)
        {
            throw new ScriptError("wrong number of tokens");
        }
        command.Run(tokens.Skip(1).ToArray());
    }

    /// <summary>The tokens of a line; none for a line that means nothing.</summary>
    private string[] Tokens(string text, long number)
    {
        if (text.StartsWith("#", StringComparison.Ordinal))
        {
            return new string[0];
        }
        string round = number.ToString(CultureInfo.InvariantCulture);
        return text.Split(new[] { ' ' }, StringSplitOptions.RemoveEmptyEntries)
            .Select(token => Resolve(token.Replace("{}", round)))
            .ToArray();
    }

    private string Resolve(string token)
    {
        if (token.StartsWith("data:", StringComparison.Ordinal))
        {
            return data + "/" + token.Substring(5);
        }
        return token.StartsWith("out:", StringComparison.Ordinal) ? folder + "/" + token.Substring(4) : token;
    }

    /// <summary>The line of the `end` that belongs to the `repeat` of a line.</summary>
    private int EndOf(int start)
    {
        int depth = 0;
        for (int at = start; at < lines.Length; ++at)
        {
            string text = lines[at].Trim();
            depth += text.StartsWith("repeat ", StringComparison.Ordinal) ? 1 : 0;
            if (text == "end" && --depth == 0)
            {
                return at;
            }
        }
        throw new ScriptError("this repeat has no end");
    }

    private void Write(string text)
    {
        if (logging)
        {
            log.WriteLine(text);
        }
    }

    private void Log(string what, OrtValue value)
    {
        if (!logging)
        {
            return;
        }
        OrtTensorTypeAndShapeInfo info = value.GetTensorTypeAndShape();
        string dims = info.DimensionsCount == 0 ? "-" : string.Join("x", info.Shape);
        string type = info.ElementDataType.ToString().ToLowerInvariant();
        if (dims == "-" && info.ElementDataType == TensorElementType.Float)
        {
            Write(what + " " + type + " - " + Text.Bits(value.GetTensorDataAsSpan<float>()[0]));
            return;
        }
        ulong hash = 0xcbf29ce484222325;
        foreach (byte element in value.GetTensorMutableRawData())
        {
            hash = unchecked((hash ^ element) * 0x100000001b3);
        }
        Write(what + " " + type + " " + dims + " " + hash.ToString("x16"));
    }

    private void Log(string what, float value)
    {
        Write(what + " " + Text.Bits(value));
    }

    private void Log(string what, IEnumerable<string> names)
    {
        Write(what + " " + string.Join(" ", names));
    }

    /// <summary>Logs a property, which has one of three types.</summary>
    private void Log(string what, object value)
    {
        string text = value is float number ? Text.Bits(number) : Convert.ToString(value, CultureInfo.InvariantCulture);
        Write(what + " " + text);
    }

    private void LogEach(string what, IReadOnlyList<string> names, IEnumerable<OrtValue> values)
    {
        int i = 0;
        foreach (OrtValue value in values)
        {
            Log(what + " " + names[i++], value);
        }
    }

    private void Keep(string label, OrtValue made)
    {
        Keep(label, new Given(made));
    }

    private void Keep(string label, IDisposable made)
    {
        objects.TryGetValue(label, out IDisposable former);
        objects[label] = made;
        former?.Dispose();
    }

    private T Find<T>(string label, string kind)
        where T : class
    {
        objects.TryGetValue(label, out IDisposable found);
        return found as T ?? throw new ScriptError(label + " is no " + kind);
    }

    private CheckpointState State(string label)
    {
        return Find<CheckpointState>(label, "state");
    }

    private Held Tensor(string label)
    {
        return Find<Held>(label, "tensor");
    }

    private TrainingSession Training(string label)
    {
        return Find<TrainingSession>(label, "session");
    }

    private static bool Flag(string text, string yes, string no)
    {
        if (text != yes && text != no)
        {
            throw new ScriptError("expected " + yes + " or " + no + ", found " + text);
        }
        return text == yes;
    }

    private void Zeros(string[] a)
    {
        Keep(a[0], Held.Over(a[1], Text.Shape(a[2]), null));
    }

    private void Show(string[] a)
    {
        Log("tensor", Tensor(a[0]).Value);
    }

    private void Log(string[] a)
    {
        logging = Flag(a[0], "on", "off");
    }

    private static IReadOnlyCollection<string> From(string[] a, int begin)
    {
        return a.Skip(begin).ToList();
    }

    private static string Optional(string path)
    {
        return path == "-" ? null : path;
    }

    private List<OrtValue> Values(string[] a, int begin)
    {
        return a.Skip(begin).Select(label => Tensor(label).Value).ToList();
    }

    /// <summary>As many tensors as a token says, which follow it.</summary>
    private FixedBufferOnnxValue[] Counted(string[] a, int at)
    {
        return a.Skip(at + 1).Take(CountAt(a, at)).Select(label => Tensor(label).Fixed).ToArray();
    }

    /// <summary>The tensors behind counted ones.</summary>
    private FixedBufferOnnxValue[] Rest(string[] a, int at)
    {
        return a.Skip(at + CountAt(a, at - 1)).Select(label => Tensor(label).Fixed).ToArray();
    }

    /// <summary>The values over the same arrays as the tensors that a step wrote into.</summary>
    private List<OrtValue> Written(string[] a, int at)
    {
        return Values(a, at + CountAt(a, at - 1));
    }

    /// <summary>As many pairs of a name and a tensor as a token says, which follow it.</summary>
    private static string[] Pairs(string[] a, int at)
    {
        return a.Skip(at + 1).Take(2 * CountOfPairs(a, at)).ToArray();
    }

    /// <summary>The tokens behind counted pairs.</summary>
    private static string[] BehindPairs(string[] a, int at)
    {
        return a.Skip(at + (2 * CountOfPairs(a, at - 1))).ToArray();
    }

    private static int CountOfPairs(string[] a, int at)
    {
        long count = Text.Integer(a[at]);
        if (count < 0 || 2 * count > a.Length - at - 1)
        {
            throw new ScriptError("there are not so many inputs");
        }
        return (int)count;
    }

    private static string[] Names(string[] pairs)
    {
        return pairs.Where((token, i) => i % 2 == 0).ToArray();
    }

    private OrtValue[] Values(string[] pairs)
    {
        return pairs.Where((token, i) => i % 2 == 1).Select(label => Tensor(label).Value).ToArray();
    }

    private static int CountAt(string[] a, int at)
    {
        long count = Text.Integer(a[at]);
        if (count < 0 || count >= a.Length - at - 1)
        {
            throw new ScriptError("there are no tensors for the outputs");
        }
        return (int)count;
    }

    private void Tensor(string[] a)
    {
        byte[] content = File.ReadAllBytes(a[1]);
        int end = Array.IndexOf(content, (byte)'\n');
        string[] header = end < 0 ? new string[0] : Encoding.ASCII.GetString(content, 0, end).Split(' ');
        if (header.Length != 2)
        {
            throw new ScriptError(a[1] + " is not a tensor file");
        }
        Keep(a[0], Held.Over(header[0], Text.Shape(header[1]), content.Skip(end + 1).ToArray()));
    }

    private InferenceSession Model(string label)
    {
        return Find<InferenceSession>(label, "model");
    }

    private void Describe(string[] a)
    {
        InferenceSession model = Model(a[0]);
        foreach (string name in model.InputNames)
        {
            WriteMetadata("input", name, model.InputMetadata[name]);
        }
        foreach (string name in model.OutputNames)
        {
            WriteMetadata("output", name, model.OutputMetadata[name]);
        }
    }

    private void WriteMetadata(string what, string name, NodeMetadata metadata)
    {
        string type = metadata.ElementDataType.ToString().ToLowerInvariant();
        string dims = metadata.Dimensions.Length == 0 ? "-" : string.Join("x", metadata.Dimensions);
        Write(what + " " + name + " " + type + " " + dims);
    }

    private void Release(string[] a)
    {
        if (!objects.TryGetValue(a[0], out IDisposable held))
        {
            throw new ScriptError(a[0] + " names nothing");
        }
        objects.Remove(a[0]);
        held.Dispose();
    }

    private void Resident(string[] a)
    {
        GC.Collect();
        GC.WaitForPendingFinalizers();
        GC.Collect();
        if (RuntimeInformation.IsOSPlatform(OSPlatform.Windows))
        {
            Write("resident " + Environment.WorkingSet / 1024);
            return;
        }
        string status = File.ReadAllLines("/proc/self/status")
            .First(entry => entry.StartsWith("VmRSS:", StringComparison.Ordinal));
        Write("resident " + status.Split(new[] { ' ', '\t' }, StringSplitOptions.RemoveEmptyEntries)[1]);
    }

    private void Measure(string[] a)
    {
        long steps = Text.Integer(a[0]);
        if (steps < 1)
        {
            throw new ScriptError("expected 1 step or more");
        }
        TrainingSession session = Training(a[1]);
        FixedBufferOnnxValue[] inputs = a.Skip(2).Select(label => Tensor(label).Fixed).ToArray();
        FixedBufferOnnxValue[] outputs;
        using (IDisposableReadOnlyCollection<DisposableNamedOnnxValue> first = session.TrainStep(inputs))
        {
            outputs = first.Select(output => output.AsTensor<float>().CloneEmpty())
                .Select(FixedBufferOnnxValue.CreateFromTensor)
                .ToArray();
        }
        var times = new long[steps];
        for (long i = 0; i < steps; ++i)
        {
            long began = Stopwatch.GetTimestamp();
            session.TrainStep(inputs, outputs);
            times[i] = Stopwatch.GetTimestamp() - began;
        }
        Array.Sort(times);
        double nanoseconds = times[(steps - 1) / 2] * (1e9 / Stopwatch.Frequency);
        Write("nanoseconds " + ((long)nanoseconds).ToString(CultureInfo.InvariantCulture));
        foreach (FixedBufferOnnxValue output in outputs)
        {
            output.Dispose();
        }
    }

    /// <summary>What a command does, and how many arguments it takes.</summary>
    private sealed class Command
    {
        public Command(int fewest, int most, Action<string[]> run)
        {
            Fewest = fewest;
            Most = most;
            Run = run;
        }

        public int Fewest { get; }

        public int Most { get; }

        public Action<string[]> Run { get; }
    }
}
