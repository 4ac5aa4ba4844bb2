// Runs the tests of Tests.dll on .NET. NUnit 2.6 has no runner for .NET: its runners need remoting, which .NET lacks. Its assertions work.
//
//   RunTests [TEXT...]: runs all tests, or those whose names contain one of the texts
//
// Prints the name of each test before it runs, then its result, and at the end the counts. The exit status is 0 if at least one test passed
// and none failed.
using System;
using System.Collections;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.InteropServices;
using NUnit.Framework;

public static class RunTests
{
    private static readonly Type[] Known =
    {
        typeof(TestFixtureAttribute), typeof(TestFixtureSetUpAttribute), typeof(TestFixtureTearDownAttribute), typeof(SetUpAttribute),
        typeof(TearDownAttribute), typeof(TestAttribute), typeof(TestCaseSourceAttribute),
    };

    private static string[] texts;
    private static int passed;
    private static int failed;
    private static int skipped;

    public static int Main(string[] arguments)
    {
        texts = arguments;
        string folder = Path.GetDirectoryName(typeof(RunTests).Assembly.Location);
        Assembly tests = Assembly.LoadFrom(Path.Combine(folder, "Tests.dll"));
        Console.WriteLine(RuntimeInformation.FrameworkDescription + ", " + RuntimeInformation.OSDescription);
        foreach (Type type in tests.GetTypes().Where(IsFixture).OrderBy(type => type.FullName))
        {
            RunFixture(type);
        }
        Console.WriteLine("tests: " + passed + " passed, " + failed + " failed, " + skipped + " skipped");
        return failed == 0 && passed > 0 ? 0 : 1;
    }

    private static bool IsFixture(Type type)
    {
        return Has<TestFixtureAttribute>(type);
    }

    private static void RunFixture(Type type)
    {
        const BindingFlags All = BindingFlags.Public | BindingFlags.NonPublic | BindingFlags.Static | BindingFlags.Instance;
        MethodInfo[] methods = type.GetMethods(All);
        RejectUnknown(type, methods);
        List<KeyValuePair<string, Action<object>>> tests = methods.SelectMany(method => Tests(type, method)).ToList();
        if (tests.Count == 0)
        {
            return;
        }
        object fixture = Activator.CreateInstance(type);
        // NUnit runs the set-up of a fixture once, here even if it fails: the tests then fail too.
        if (!Try(type.Name + ": ", () => CallAll<TestFixtureSetUpAttribute>(fixture, methods)))
        {
            return;
        }
        foreach (KeyValuePair<string, Action<object>> test in tests)
        {
            Console.Write(test.Key + ": ");
            bool completed = Try("", () =>
            {
                CallAll<SetUpAttribute>(fixture, methods);
                try
                {
                    test.Value(fixture);
                }
                finally
                {
                    CallAll<TearDownAttribute>(fixture, methods);
                }
            });
            if (completed)
            {
                ++passed;
                Console.WriteLine("passed");
            }
        }
        Try(type.Name + ": ", () => CallAll<TestFixtureTearDownAttribute>(fixture, methods));
    }

    /// <summary>Fails if a test would run otherwise than with NUnit, because it has an attribute that this program ignores.</summary>
    private static void RejectUnknown(Type type, IEnumerable<MethodInfo> methods)
    {
        IEnumerable<ICustomAttributeProvider> places =
            methods.SelectMany(method => method.GetParameters().Concat<ICustomAttributeProvider>(new[] { method })).Concat(new[] { type });
        object unknown = places.SelectMany(place => place.GetCustomAttributes(true)).FirstOrDefault(
            attribute => attribute.GetType().Namespace == "NUnit.Framework" && !Known.Contains(attribute.GetType()));
        if (unknown != null)
        {
            throw new NotSupportedException(type + " uses " + unknown + ", which RunTests.cs does not implement");
        }
    }

    /// <summary>The selected tests of a method by name: one for each case of its source, or one.</summary>
    private static IEnumerable<KeyValuePair<string, Action<object>>> Tests(Type type, MethodInfo method)
    {
        string name = type.Name + "." + method.Name;
        var cases = new List<object[]>();
        foreach (TestCaseSourceAttribute source in method.GetCustomAttributes(typeof(TestCaseSourceAttribute), true))
        {
            cases.AddRange(Cases(source.SourceType ?? type, source.SourceName));
        }
        if (Has<TestAttribute>(method) && cases.Count == 0)
        {
            cases.Add(new object[0]);
        }
        return cases
            .Select(values => new KeyValuePair<string, Action<object>>(
                values.Length == 0 ? name : name + "(" + string.Join(", ", values) + ")",
                fixture => Call(fixture, method, values)))
            .Where(test => texts.Length == 0 || texts.Any(text => test.Key.Contains(text)));
    }

    private static IEnumerable<object[]> Cases(Type type, string source)
    {
        const BindingFlags Static = BindingFlags.Public | BindingFlags.NonPublic | BindingFlags.Static | BindingFlags.FlattenHierarchy;
        MemberInfo member = type.GetMember(source, Static).Single();
        object values = member is PropertyInfo property ? property.GetValue(null)
            : member is FieldInfo field ? field.GetValue(null)
            : ((MethodInfo)member).Invoke(null, null);
        return ((IEnumerable)values).Cast<object>().Select(value => value as object[] ?? new[] { value });
    }

    private static void CallAll<T>(object fixture, IEnumerable<MethodInfo> methods)
    {
        foreach (MethodInfo method in methods.Where(Has<T>))
        {
            Call(fixture, method, null);
        }
    }

    private static void Call(object fixture, MethodInfo method, object[] values)
    {
        if (method.ReturnType != typeof(void))
        {
            throw new NotSupportedException("RunTests.cs does not check what " + method + " returns");
        }
        method.Invoke(method.IsStatic ? null : fixture, values);
    }

    /// <summary>Reports that a test failed or is skipped. True if the action completed.</summary>
    private static bool Try(string prefix, Action action)
    {
        try
        {
            action();
            return true;
        }
        catch (TargetInvocationException wrapped) when (wrapped.InnerException is IgnoreException)
        {
            ++skipped;
            Console.WriteLine(prefix + "SKIPPED: " + wrapped.InnerException.Message);
        }
        catch (Exception error)
        {
            ++failed;
            Console.WriteLine(prefix + "FAILED: " + ((error as TargetInvocationException)?.InnerException ?? error));
        }
        return false;
    }

    private static bool Has<T>(ICustomAttributeProvider place)
    {
        return place.IsDefined(typeof(T), true);
    }
}
