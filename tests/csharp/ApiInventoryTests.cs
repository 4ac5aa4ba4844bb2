using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using Microsoft.ML.OnnxRuntime;
using NUnit.Framework;

/// <summary>Every member of the discontinued packages exists with its exact signature.</summary>
[TestFixture]
public class ApiInventoryTests
{
    private const BindingFlags Everything =
        BindingFlags.Public | BindingFlags.NonPublic | BindingFlags.Instance | BindingFlags.Static |
        BindingFlags.DeclaredOnly;

    private static readonly Dictionary<Type, string> Keywords = new Dictionary<Type, string>
    {
        { typeof(void), "void" }, { typeof(bool), "bool" }, { typeof(byte), "byte" }, { typeof(int), "int" },
        { typeof(long), "long" }, { typeof(float), "float" }, { typeof(string), "string" },
        { typeof(object), "object" },
    };

    [Test]
    public void EveryMemberOfTheInventoryIsThere()
    {
        var missing = new List<string>();
        int found = 0;
        string type = null;
        HashSet<string> members = null;
        foreach (string line in File.ReadAllLines(Environment.GetEnvironmentVariable("ORTRAIN_API_INVENTORY")))
        {
            if (line.StartsWith("#") || line.Trim() == "")
            {
                continue;
            }
            if (!line.StartsWith(" "))
            {
                type = line;
                members = Members(line);
                continue;
            }
            if (members.Contains(line.Trim()))
            {
                ++found;
            }
            else
            {
                missing.Add(type + ": " + line.Trim());
            }
        }
        Assert.That(missing, Is.Empty);
        Assert.That(found, Is.GreaterThan(90), "the inventory is there");
    }

    [Test]
    public void TheAssemblyHasTheNameThatProgramsReference()
    {
        Assert.That(typeof(TrainingSession).Assembly.GetName().Name, Is.EqualTo("Microsoft.ML.OnnxRuntime"));
        Assert.That(typeof(TrainingSession).Namespace, Is.EqualTo("Microsoft.ML.OnnxRuntime"));
        Assert.That(typeof(TrainingSession).BaseType, Is.EqualTo(typeof(object)));
    }

    [Test]
    public void NothingIsPublicOutsideOfTheTwoNamespaces()
    {
        var known = new[] { "Microsoft.ML.OnnxRuntime", "Microsoft.ML.OnnxRuntime.Tensors" };
        Type[] types = typeof(TrainingSession).Assembly.GetExportedTypes();
        IEnumerable<Type> strange = types.Where(type => !known.Contains(type.Namespace));
        Assert.That(strange, Is.Empty);
    }

    /// <summary>The members of a type, including inherited ones, in the notation of the inventory.</summary>
    private static HashSet<string> Members(string line)
    {
        string[] names = line.Split(new[] { " : " }, StringSplitOptions.None);
        string name = names[0].EndsWith("<T>") ? names[0].Replace("<T>", "`1") : names[0];
        Type type = typeof(TrainingSession).Assembly.GetType("Microsoft.ML.OnnxRuntime." + name);
        Assert.That(type, Is.Not.Null, name);
        List<string> parents = type.GetInterfaces().Concat(Ancestors(type)).Select(NameOf).ToList();
        foreach (string listed in names.Skip(1))
        {
            Assert.That(listed.Split(new[] { ", " }, StringSplitOptions.None), Is.SubsetOf(parents), name);
        }
        var members = new HashSet<string>();
        foreach (Type declaring in new[] { type }.Concat(Ancestors(type)))
        {
            IEnumerable<MethodBase> methods = declaring.GetMethods(Everything);
            methods = methods.Concat(declaring.GetConstructors(Everything));
            foreach (MethodBase method in methods.Where(method => method.IsPublic || method.IsFamily))
            {
                members.Add(Describe(type, method));
            }
            foreach (PropertyInfo property in declaring.GetProperties(Everything).Where(p => p.GetGetMethod() != null))
            {
                string modifier = property.GetGetMethod().IsStatic ? "static " : "";
                members.Add(modifier + NameOf(property.PropertyType) + " " + property.Name);
            }
        }
        return members;
    }

    private static IEnumerable<Type> Ancestors(Type type)
    {
        for (Type parent = type.BaseType; parent != null; parent = parent.BaseType)
        {
            yield return parent;
        }
    }

    private static string Describe(Type type, MethodBase method)
    {
        string parameters = string.Join(", ", method.GetParameters().Select(Describe));
        string plain = type.Name.Split('`')[0];
        if (method is ConstructorInfo)
        {
            return plain + "(" + parameters + ")";
        }
        if (method.Name == "Finalize")
        {
            return "~" + plain + "()";
        }
        var info = (MethodInfo)method;
        string modifiers = info.IsStatic ? "static " : "";
        if (info.IsFamily)
        {
            modifiers = "protected " + (info.IsVirtual && info.GetBaseDefinition() == info ? "virtual " : "");
        }
        string generic = info.IsGenericMethod
            ? "<" + string.Join(", ", info.GetGenericArguments().Select(NameOf)) + ">"
            : "";
        return modifiers + NameOf(info.ReturnType) + " " + info.Name + generic + "(" + parameters + ")";
    }

    private static string Describe(ParameterInfo parameter)
    {
        string text = NameOf(parameter.ParameterType) + " " + parameter.Name;
        string value = (parameter.DefaultValue ?? "null").ToString().ToLowerInvariant();
        return parameter.IsOptional ? text + " = " + value : text;
    }

    private static string NameOf(Type type)
    {
        if (Keywords.TryGetValue(type, out string keyword))
        {
            return keyword;
        }
        if (type.IsArray)
        {
            return NameOf(type.GetElementType()) + "[]";
        }
        if (!type.IsGenericType)
        {
            return type.Name;
        }
        return type.Name.Split('`')[0] + "<" + string.Join(", ", type.GetGenericArguments().Select(NameOf)) + ">";
    }
}
