// Fine-tunes a model on a folder of images with one folder per class; see README.md in this folder for details.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Text;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

/// <summary>The given files are invalid; the message says why.</summary>
public sealed class Refused : Exception
{
    public Refused(string message)
        : base(message)
    {
    }

    /// <summary>The system's message about a file or a folder.</summary>
    public Refused(string path, Exception reason)
        : base(path + ": " + Describe(reason))
    {
    }

    private static string Describe(Exception reason)
    {
        bool missing = reason is DirectoryNotFoundException || reason is FileNotFoundException;
        return missing ? "No such file or directory" : reason.Message;
    }
}

/// <summary>The command line is invalid.</summary>
public sealed class WrongUsage : Exception
{
    public WrongUsage(string message)
        : base(message)
    {
    }
}

/// <summary>Images with their class indices.</summary>
public sealed class Samples
{
    private readonly List<float> pixels = new List<float>();
    private readonly List<long> labels = new List<long>();

    /// <summary>Reads all samples of a folder, sorted by class and name.</summary>
    /// <param name="size">Pixels in an image.</param>
    public Samples(string folder, int size)
    {
        Size = size;
        List<string> classes = Entries(folder);
        foreach (string name in classes)
        {
            if (name.Length > 9 || !name.All(letter => letter >= '0' && letter <= '9') ||
                !Directory.Exists(folder + "/" + name))
            {
                throw new Refused(folder + "/" + name + ": expected a folder named by the number of its class");
            }
        }
        Classes = classes.Count;
        foreach (string name in classes.OrderBy(int.Parse))
        {
            foreach (string image in Entries(folder + "/" + name))
            {
                Add(folder + "/" + name + "/" + image, int.Parse(name));
            }
        }
    }

    public int Size { get; }

    public int Classes { get; }

    public int Count => labels.Count;

    /// <summary>Copies a sample to a place in a batch.</summary>
    public void CopyTo(int number, float[] images, long[] classes, int place)
    {
        pixels.CopyTo(number * Size, images, place * Size, Size);
        classes[place] = labels[number];
    }

    /// <summary>The entries of a folder, sorted by name, without hidden files.</summary>
    private static List<string> Entries(string folder)
    {
        try
        {
            List<string> names = Directory.GetFileSystemEntries(folder)
                .Select(Path.GetFileName)
                .Where(name => !name.StartsWith(".", StringComparison.Ordinal))
                .ToList();
            names.Sort(CompareBytes);
            return names;
        }
        catch (Exception reason) when (reason is IOException || reason is UnauthorizedAccessException)
        {
            throw new Refused(folder, reason);
        }
    }

    private static int CompareBytes(string one, string other)
    {
        byte[] a = Encoding.UTF8.GetBytes(one), b = Encoding.UTF8.GetBytes(other);
        for (int i = 0; i < Math.Min(a.Length, b.Length); ++i)
        {
            if (a[i] != b[i])
            {
                return a[i] - b[i];
            }
        }
        return a.Length - b.Length;
    }

    private void Add(string path, long label)
    {
        byte[] content;
        try
        {
            content = File.ReadAllBytes(path);
        }
        catch (Exception reason) when (reason is IOException || reason is UnauthorizedAccessException)
        {
            throw new Refused(path, reason);
        }
        int at = 2;
        bool isPgm = content.Length > 2 && content[0] == 'P' && content[1] == '5';
        if (!isPgm || !ReadNumber(content, ref at, out int width) || !ReadNumber(content, ref at, out int height) ||
            !ReadNumber(content, ref at, out int greatest) || greatest < 1 || greatest > 255 || !IsSpace(content, at++))
        {
            throw new Refused(path + ": expected an 8-bit binary PGM image (P5)");
        }
        if ((long)width * height != Size)
        {
            throw new Refused(path + ": expected " + Size + " pixels, found " + width + " x " + height);
        }
        if (content.Length - at != Size)
        {
            throw new Refused(path + ": expected " + Size + " bytes of pixels, found " + (content.Length - at));
        }
        for (; at < content.Length; ++at)
        {
            pixels.Add((float)content[at] / (float)greatest);
        }
        labels.Add(label);
    }

    /// <summary>A number in the header of an image, with the whitespace and comments before
    /// it.</summary>
    private static bool ReadNumber(byte[] content, ref int at, out int number)
    {
        number = 0;
        if (!IsSpace(content, at))
        {
            return false;
        }
        while (IsSpace(content, at) || (at < content.Length && content[at] == '#'))
        {
            if (content[at++] == '#')
            {
                while (at < content.Length && content[at] != '\n')
                {
                    ++at;
                }
            }
        }
        int start = at;
        while (at < content.Length && content[at] >= '0' && content[at] <= '9' && number < 100000000)
        {
            number = (number * 10) + content[at++] - '0';
        }
        return at > start;
    }

    private static bool IsSpace(byte[] content, int at)
    {
        return at < content.Length && (content[at] == ' ' || (content[at] >= '\t' && content[at] <= '\r'));
    }
}

/// <summary>The options of the command line.</summary>
public sealed class Options
{
    public const string Usage =
        "usage: personalize ARTIFACTS SAMPLES OUT [--epochs N] [--batch N] [--learning-rate X] [--seed N]\n" +
        "                   [--output NAME] [--resume CHECKPOINT] [--help]\n";

    public const string Help =
        "\n" +
        "Fine-tunes a model on a folder of images with one folder per class.\n" +
        "\n" +
        "  ARTIFACTS            folder of the training artifacts\n" +
        "  SAMPLES              folder with one folder of PGM images per class\n" +
        "  OUT                  folder for the checkpoint and the trained model\n" +
        "  --epochs N           total number of epochs (default 5)\n" +
        "  --batch N            samples per step (default 16)\n" +
        "  --learning-rate X    learning rate (default 0.001)\n" +
        "  --seed N             seed of the shuffling (default 0)\n" +
        "  --output NAME        value to export (default: the eval model's second output)\n" +
        "  --resume CHECKPOINT  resume from a checkpoint that this program saved\n";

    public Options(string[] arguments)
    {
        var positions = new List<string>();
        for (int i = 0; i < arguments.Length; ++i)
        {
            string option = arguments[i];
            if (!option.StartsWith("--", StringComparison.Ordinal))
            {
                if (positions.Count == 3)
                {
                    throw new WrongUsage("unexpected argument " + option);
                }
                positions.Add(option);
                continue;
            }
            Set(option, i + 1 < arguments.Length ? arguments[++i] : null);
        }
        if (positions.Count < 3)
        {
            throw new WrongUsage(new[] { "ARTIFACTS", "SAMPLES", "OUT" }[positions.Count] + " is missing");
        }
        Artifacts = positions[0];
        Samples = positions[1];
        Out = positions[2];
    }

    public string Artifacts { get; }

    public string Samples { get; }

    public string Out { get; }

    public int Epochs { get; private set; } = 5;

    public int Batch { get; private set; } = 16;

    public float LearningRate { get; private set; } = 1e-3f;

    public int Seed { get; private set; }

    public string Output { get; private set; }

    public string Resume { get; private set; }

    private void Set(string option, string text)
    {
        switch (option)
        {
            case "--epochs":
                Epochs = WholeNumber(option, text, 1);
                break;
            case "--batch":
                Batch = WholeNumber(option, text, 1);
                break;
            case "--seed":
                Seed = WholeNumber(option, text, 0);
                break;
            case "--learning-rate":
                LearningRate = Rate(option, text);
                break;
            case "--output":
                Output = Given(option, text);
                break;
            case "--resume":
                Resume = Given(option, text);
                break;
            default:
                throw new WrongUsage("there is no option " + option);
        }
    }

    private static string Given(string option, string text)
    {
        return text ?? throw new WrongUsage(option + ": expected a value");
    }

    private static int WholeNumber(string option, string text, int lowest)
    {
        if (!int.TryParse(Given(option, text), NumberStyles.None, CultureInfo.InvariantCulture, out int value) ||
            value < lowest)
        {
            throw new WrongUsage(
                option + ": expected a whole number from " + lowest + " to " + int.MaxValue + ", found " + text);
        }
        return value;
    }

    private static float Rate(string option, string text)
    {
        if (!double.TryParse(Given(option, text), NumberStyles.Float, CultureInfo.InvariantCulture, out double value) ||
            !(value > 0) || double.IsInfinity(value))
        {
            throw new WrongUsage(option + ": expected a finite number above 0, found " + text);
        }
        return (float)value;
    }
}

/// <summary>A training session on the artifacts of a model, and the batch that its steps read.</summary>
public sealed class Personalization : IDisposable
{
    private readonly CheckpointState state;
    private readonly TrainingSession session;
    private readonly long[] shape; // of the images; the first dimension is the batch
    private float[] images;
    private long[] labels;

    public Personalization(Options options, string checkpoint)
    {
        state = CheckpointState.LoadCheckpoint(checkpoint);
        session = new TrainingSession(
            state, options.Artifacts + "/training_model.onnx", options.Artifacts + "/eval_model.onnx",
            options.Artifacts + "/optimizer_model.onnx");
        OrtTensorTypeAndShapeInfo input = session.GetModelInputTypeInfo(true, 0);
        shape = input.Shape;
        if (input.ElementDataType != TensorElementType.Float || shape.Length == 0 || shape[0] != -1 ||
            shape.Skip(1).Any(dimension => dimension < 1))
        {
            throw new Refused(
                options.Artifacts + "/training_model.onnx: expected a first input of floats with a variable batch and " +
                "fixed dimensions, found " + input);
        }
        Size = (int)shape.Skip(1).Aggregate(1L, (product, dimension) => product * dimension);
        session.SetLearningRate(options.LearningRate);
    }

    /// <summary>Number of pixels in an image.</summary>
    public int Size { get; }

    public List<string> EvalOutputs => session.OutputNames(false);

    /// <summary>Number of epochs that the checkpoint has completed.</summary>
    public long? EpochsBehind =>
        state.PropertyNames().Contains("epochs") ? state.GetProperty("epochs") as long? : null;

    private int Batch => labels.Length;

    /// <summary>Makes room for the batch; there are at least as many samples.</summary>
    public void MakeBatch(int batch)
    {
        images = new float[batch * Size];
        labels = new long[batch];
    }

    /// <summary>Takes a step for every full batch; returns the mean loss.</summary>
    public double TrainEpoch(Samples samples, int[] order, Action<int, int, double> progress)
    {
        int steps = order.Length / Batch;
        double total = 0;
        // The tensors share the arrays' memory, so they are created only once.
        using (OrtValue x = MakeImages(Batch))
        using (OrtValue y = MakeLabels(Batch))
        {
            var inputs = new[] { x, y };
            for (int step = 1; step <= steps; ++step)
            {
                Fill(samples, order, (step - 1) * Batch, Batch);
                using (IDisposableReadOnlyCollection<OrtValue> outputs = session.TrainStep(inputs))
                {
                    total += outputs[0].GetTensorDataAsSpan<float>()[0];
                }
                session.OptimizerStep();
                session.LazyResetGrad();
                progress(step, steps, total / step);
            }
        }
        return total / steps;
    }

    /// <summary>The mean loss of some samples, and the number classified correctly if the model has
    /// scores.</summary>
    public double Evaluate(Samples samples, int[] numbers, out int? right)
    {
        double total = 0;
        right = null;
        for (int start = 0; start < numbers.Length; start += Batch)
        {
            int count = Math.Min(Batch, numbers.Length - start);
            Fill(samples, numbers, start, count);
            using (OrtValue x = MakeImages(count))
            using (OrtValue y = MakeLabels(count))
            using (IDisposableReadOnlyCollection<OrtValue> outputs = session.EvalStep(new[] { x, y }))
            {
                total += (double)outputs[0].GetTensorDataAsSpan<float>()[0] * count;
                int? more = outputs.Count > 1 ? CountRight(outputs[1], count) : null;
                right = more == null ? right : (right ?? 0) + more;
            }
        }
        return total / numbers.Length;
    }

    /// <summary>Saves everything needed to resume.</summary>
    public void Save(string path, long epochs, float loss)
    {
        state.AddProperty("epochs", epochs);
        state.AddProperty("loss", loss);
        CheckpointState.SaveCheckpoint(state, path, includeOptimizerState: true);
    }

    public void Export(string path, string output)
    {
        session.ExportModelForInferencing(path, new[] { output });
    }

    public void Dispose()
    {
        session.Dispose();
        state.Dispose();
    }

    private void Fill(Samples samples, int[] numbers, int start, int count)
    {
        for (int i = 0; i < count; ++i)
        {
            samples.CopyTo(numbers[start + i], images, labels, i);
        }
    }

    private OrtValue MakeImages(int count)
    {
        shape[0] = count;
        return OrtValue.CreateTensorValueFromMemory(images, shape);
    }

    private OrtValue MakeLabels(int count)
    {
        return OrtValue.CreateTensorValueFromMemory(labels, new long[] { count });
    }

    /// <summary>How many samples have their highest score at their label; null for values that are not
    /// scores.</summary>
    private int? CountRight(OrtValue scores, int count)
    {
        OrtTensorTypeAndShapeInfo info = scores.GetTensorTypeAndShape();
        if (info.ElementDataType != TensorElementType.Float || info.DimensionsCount != 2 || info.Shape[0] != count)
        {
            return null;
        }
        var classes = (int)info.Shape[1];
        ReadOnlySpan<float> all = scores.GetTensorDataAsSpan<float>();
        int right = 0;
        for (int i = 0; i < count; ++i)
        {
            int best = 0;
            for (int c = 1; c < classes; ++c)
            {
                best = all[(i * classes) + c] > all[(i * classes) + best] ? c : best;
            }
            right += best == labels[i] ? 1 : 0;
        }
        return right;
    }
}

public static class Program
{
    public static int Main(string[] arguments)
    {
        // The stream itself: on a terminal, the console would add escape sequences.
        using (var output = new StreamWriter(Console.OpenStandardOutput(), new UTF8Encoding(false)))
        {
            output.NewLine = "\n";
            output.AutoFlush = true;
            if (arguments.Contains("--help"))
            {
                output.Write(Options.Usage + Options.Help);
                return 0;
            }
            try
            {
                Personalize(new Options(arguments), output);
                return 0;
            }
            catch (WrongUsage error)
            {
                Console.Error.Write(Options.Usage + "personalize: error: " + error.Message + "\n");
                return 2;
            }
            catch (Exception error) when (error is Refused || error is OnnxRuntimeException || error is IOException)
            {
                Console.Error.Write("error: " + error.Message + "\n");
                return 1;
            }
        }
    }

    private static void Personalize(Options options, TextWriter output)
    {
        string checkpoint = options.Resume ?? options.Artifacts + "/checkpoint";
        using (var training = new Personalization(options, checkpoint))
        {
            List<string> values = training.EvalOutputs;
            if (options.Output == null && values.Count < 2)
            {
                throw new Refused(
                    options.Artifacts + "/eval_model.onnx: it has no output besides the loss; name a value to export " +
                    "with --output");
            }
            string exported = options.Output ?? values[1];

            var samples = new Samples(options.Samples, training.Size);
            int[] train = Enumerable.Range(0, samples.Count).Where(i => i % 5 != 4).ToArray();
            int[] heldOut = Enumerable.Range(0, samples.Count).Where(i => i % 5 == 4).ToArray();
            if (heldOut.Length == 0 || train.Length < options.Batch)
            {
                throw new Refused(
                    options.Samples + ": expected at least 5 samples and " + options.Batch + " for training, found " +
                    samples.Count + " and " + train.Length);
            }
            training.MakeBatch(options.Batch);
            long done = EpochsDone(options, training, checkpoint);
            MakeFolder(options.Out);
            output.WriteLine(
                samples.Count + " samples of " + samples.Classes + " classes: " + train.Length + " for training, " +
                heldOut.Length + " held out");

            bool onTerminal = !Console.IsOutputRedirected;
            for (long epoch = done + 1; epoch <= options.Epochs; ++epoch)
            {
                string title = "epoch " + epoch + "/" + options.Epochs;
                int[] order = Shuffled(train, ((ulong)options.Seed << 32) + (ulong)epoch);
                Stopwatch watch = Stopwatch.StartNew();
                double loss = training.TrainEpoch(samples, order, (step, steps, mean) =>
                {
                    if (onTerminal)
                    {
                        string bar = new string('#', 20 * step / steps).PadRight(20, '.');
                        double speed = step * options.Batch / watch.Elapsed.TotalSeconds;
                        output.Write(
                            "\r" + title + "  [" + bar + "]  " + step + "/" + steps + "  loss " + Fixed(mean, 4) +
                            "  " + Fixed(speed, 0) + " samples/s");
                    }
                });
                double heldOutLoss = training.Evaluate(samples, heldOut, out int? right);

                string line = title + ": loss " + Fixed(loss, 4) + ", held-out loss " + Fixed(heldOutLoss, 4);
                if (right != null)
                {
                    long tenths = ((1000L * right.Value) + (heldOut.Length / 2)) / heldOut.Length;
                    line += ", accuracy " + (tenths / 10) + "." + (tenths % 10) + "%";
                }
                // On a terminal this overwrites the progress line and clears the rest of it.
                output.WriteLine(onTerminal ? "\r" + line + "\u001b[K" : line);
                training.Save(options.Out + "/checkpoint", epoch, (float)loss);
            }
            output.WriteLine("saved " + options.Out + "/checkpoint");
            training.Export(options.Out + "/model.onnx", exported);
            output.WriteLine("exported " + options.Out + "/model.onnx with output " + exported);
        }
    }

    private static long EpochsDone(Options options, Personalization training, string checkpoint)
    {
        long? done = options.Resume == null ? 0 : training.EpochsBehind;
        if (done == null)
        {
            throw new Refused(
                checkpoint + ": expected a checkpoint that this program saved, with the property epochs");
        }
        if (done >= options.Epochs)
        {
            throw new Refused(
                checkpoint + ": it has " + done + " epochs already; expected a larger --epochs, found " +
                options.Epochs);
        }
        return done.Value;
    }

    /// <summary>Creates a folder if it does not exist, but not its parents.</summary>
    private static void MakeFolder(string path)
    {
        try
        {
            if (!Directory.Exists(Path.GetDirectoryName(Path.GetFullPath(path.TrimEnd('/')))))
            {
                throw new DirectoryNotFoundException();
            }
            Directory.CreateDirectory(path);
        }
        catch (Exception reason) when (
            reason is IOException || reason is UnauthorizedAccessException || reason is ArgumentException)
        {
            throw new Refused(path, reason);
        }
    }

    /// <summary>Fisher-Yates shuffle.</summary>
    private static int[] Shuffled(int[] numbers, ulong state)
    {
        var shuffled = (int[])numbers.Clone();
        for (int i = shuffled.Length - 1; i > 0; --i)
        {
            var j = (int)(NextRandom(ref state) % (ulong)(i + 1));
            int moved = shuffled[i];
            shuffled[i] = shuffled[j];
            shuffled[j] = moved;
        }
        return shuffled;
    }

    /// <summary>SplitMix64 (Steele, Lea and Flood 2014).</summary>
    private static ulong NextRandom(ref ulong state)
    {
        unchecked
        {
            ulong z = state += 0x9E3779B97F4A7C15;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
            return z ^ (z >> 31);
        }
    }

    private static string Fixed(double value, int digits)
    {
        return value.ToString("F" + digits, CultureInfo.InvariantCulture);
    }
}
