using System;
using System.Collections.Generic;
using Microsoft.ML.OnnxRuntime;
using NUnit.Framework;

/// <summary>Settings have their defaults, keep their values, and reach the library.</summary>
[TestFixture]
public class OptionsTests
{
    [Test]
    public void SessionOptionsKeepWhatTheyAreSetTo()
    {
        using (var options = new SessionOptions())
        {
            Assert.That(options.IntraOpNumThreads, Is.EqualTo(0));
            Assert.That(options.GraphOptimizationLevel, Is.EqualTo(GraphOptimizationLevel.ORT_ENABLE_ALL));
            Assert.That(options.ExecutionMode, Is.EqualTo(ExecutionMode.ORT_SEQUENTIAL));
            Assert.That(options.LogSeverityLevel, Is.EqualTo(OrtLoggingLevel.ORT_LOGGING_LEVEL_WARNING));
            Assert.That(options.LogId, Is.EqualTo(""));
            Assert.That(options.EnableCpuMemArena && options.EnableMemoryPattern);

            options.IntraOpNumThreads = 2;
            options.InterOpNumThreads = 1;
            options.GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_BASIC;
            options.ExecutionMode = ExecutionMode.ORT_PARALLEL;
            options.LogSeverityLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR;
            options.LogVerbosityLevel = 3;
            options.LogId = "tests";
            options.UseDeterministicCompute = true;
            options.EnableCpuMemArena = false;
            options.EnableMemoryPattern = false;
            options.AppendExecutionProvider_CPU(0);
            options.AppendExecutionProvider("CPUExecutionProvider", new Dictionary<string, string> { { "a", "b" } });
            options.DisablePerSessionThreads();

            Assert.That(options.IntraOpNumThreads, Is.EqualTo(2));
            Assert.That(options.InterOpNumThreads, Is.EqualTo(1));
            Assert.That(options.GraphOptimizationLevel, Is.EqualTo(GraphOptimizationLevel.ORT_ENABLE_BASIC));
            Assert.That(options.ExecutionMode, Is.EqualTo(ExecutionMode.ORT_PARALLEL));
            Assert.That(options.LogSeverityLevel, Is.EqualTo(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR));
            Assert.That(options.LogVerbosityLevel, Is.EqualTo(3));
            Assert.That(options.LogId, Is.EqualTo("tests"));
            Assert.That(options.UseDeterministicCompute);
            Assert.That(options.EnableCpuMemArena || options.EnableMemoryPattern, Is.False);
        }
    }

    [Test]
    public void ARefusedSettingStaysAsItWas()
    {
        using (var options = new SessionOptions { IntraOpNumThreads = 3 })
        {
            Assert.Throws<OnnxRuntimeException>(() => options.IntraOpNumThreads = -1);
            Assert.That(options.IntraOpNumThreads, Is.EqualTo(3));
            var error = Assert.Throws<OnnxRuntimeException>(() => options.AppendExecutionProvider("CUDA"));
            StringAssert.Contains("CPU", error.Message);
        }
    }

    [Test]
    public void EntriesOfTheConfigurationAreReadBack()
    {
        using (var options = new SessionOptions())
        {
            options.AddSessionConfigEntry("ortrain.disable_pass.common_subexpression_elimination", "1");
            options.AddSessionConfigEntry("größe", "Ü字");
            options.AddSessionConfigEntry("empty", "");
            Assert.That(options.HasSessionConfigEntry("größe"));
            Assert.That(options.HasSessionConfigEntry("other"), Is.False);
            Assert.That(options.GetSessionConfigEntry("größe"), Is.EqualTo("Ü字"));
            Assert.That(options.GetSessionConfigEntry("empty"), Is.EqualTo(""));
            var error = Assert.Throws<OnnxRuntimeException>(() => options.GetSessionConfigEntry("other"));
            Assert.That(error.ErrorCode, Is.EqualTo(ErrorCode.InvalidArgument));
            Assert.Throws<OnnxRuntimeException>(() => options.AddSessionConfigEntry("", "x"));
        }
    }

    [Test]
    public void RunOptionsKeepWhatTheyAreSetTo()
    {
        using (var options = new RunOptions())
        {
            Assert.That(options.Terminate, Is.False);
            options.LogId = "step";
            options.LogSeverityLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_INFO;
            options.LogVerbosityLevel = 1;
            options.Terminate = true;
            options.AddRunConfigEntry("key", "value");
            Assert.That(options.LogId, Is.EqualTo("step"));
            Assert.That(options.LogSeverityLevel, Is.EqualTo(OrtLoggingLevel.ORT_LOGGING_LEVEL_INFO));
            Assert.That(options.LogVerbosityLevel, Is.EqualTo(1));
            Assert.That(options.Terminate);
        }
    }

    [Test]
    public void TheEnvironmentTellsWhatTheLibraryIs()
    {
        OrtEnv env = OrtEnv.Instance();
        Assert.That(OrtEnv.Instance(), Is.SameAs(env));
        StringAssert.Contains("ortrain", env.GetVersionString());
        Assert.That(env.GetAvailableProviders(), Is.EqualTo(new[] { "CPUExecutionProvider" }));
        Assert.That(env.EnvLogLevel, Is.EqualTo(OrtLoggingLevel.ORT_LOGGING_LEVEL_WARNING));
        env.EnvLogLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR;
        Assert.That(env.EnvLogLevel, Is.EqualTo(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR));
        env.EnvLogLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_WARNING;
        Assert.Throws<OnnxRuntimeException>(() => env.EnvLogLevel = (OrtLoggingLevel)9);
        env.EnableTelemetryEvents();
        env.DisableTelemetryEvents();
        var options = new EnvironmentCreationOptions { logId = "again" };
        Assert.Throws<OnnxRuntimeException>(() => OrtEnv.CreateInstanceWithOptions(ref options));
    }

    [Test]
    public void MemoryInfosAreCompared()
    {
        using (var one = new OrtMemoryInfo("Cpu", OrtAllocatorType.DeviceAllocator, 0, OrtMemType.Default))
        using (var other = new OrtMemoryInfo("Cpu", OrtAllocatorType.ArenaAllocator, 0, OrtMemType.Default))
        {
            Assert.That(one, Is.EqualTo(OrtMemoryInfo.DefaultInstance));
            Assert.That(one.GetHashCode(), Is.EqualTo(OrtMemoryInfo.DefaultInstance.GetHashCode()));
            Assert.That(one, Is.Not.EqualTo(other));
            Assert.That(other.GetAllocatorType(), Is.EqualTo(OrtAllocatorType.ArenaAllocator));
            Assert.That(other.GetMemoryType(), Is.EqualTo(OrtMemType.Default));
            Assert.That(one.Id, Is.EqualTo(0));
            Assert.That(OrtAllocator.DefaultInstance.Info, Is.EqualTo(one));
        }
        Assert.Throws<OnnxRuntimeException>(
            () => new OrtMemoryInfo("Elsewhere", OrtAllocatorType.DeviceAllocator, 0, OrtMemType.Default));
    }

    [Test]
    public void ErrorsOfTheBindingAreItsOwnExceptions()
    {
        Exception error = Assert.Throws<OnnxRuntimeException>(() => CheckpointState.LoadCheckpoint("nowhere"));
        Assert.That(error, Is.InstanceOf<Exception>());
        StringAssert.StartsWith("[ErrorCode:NoSuchFile] LoadCheckpoint: ", error.Message);
    }
}
