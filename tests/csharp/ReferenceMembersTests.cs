using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using Microsoft.ML.OnnxRuntime;
using NUnit.Framework;

/// <summary>The public types and members of onnxruntime's assembly are here, but for those that a file lists with
/// reasons.</summary>
[TestFixture]
public class ReferenceMembersTests
{
    private const string Root = "Microsoft.ML.OnnxRuntime.";
    private const BindingFlags Everything =
        BindingFlags.Public | BindingFlags.NonPublic | BindingFlags.Instance | BindingFlags.Static |
        BindingFlags.FlattenHierarchy;

    private static readonly Dictionary<Type, string> Keywords = new Dictionary<Type, string>
    {
        { typeof(void), "void" }, { typeof(bool), "bool" }, { typeof(byte), "byte" }, { typeof(int), "int" },
        { typeof(long), "long" }, { typeof(float), "float" }, { typeof(string), "string" },
        { typeof(object), "object" },
    };

    [Test]
    public void WhatIsMissingIsListedWithAReason()
    {
        List<string> reference = Lines("ORTRAIN_REFERENCE_MEMBERS").Where(line => line.StartsWith("M\t") || line.StartsWith("T\t")).ToList();
        List<string> excused = Lines("ORTRAIN_ABSENT_MEMBERS").Where(line => line != "" && !line.StartsWith("#")).ToList();
        var types = new HashSet<string>(excused.Where(line => !line.Contains("\t")));
        var members = new HashSet<string>(excused.Where(line => line.Contains("\t")));
        Dictionary<string, HashSet<string>> ours = typeof(InferenceSession).Assembly.GetExportedTypes().ToDictionary(Short, Members);
        Assert.That(reference.Count, Is.GreaterThan(900), "the reference is there");

        var missing = new List<string>();
        foreach (string line in reference)
        {
            string[] parts = line.Split('\t');
            string member = parts[1] + "\t" + parts[2];
            bool isType = parts[0] == "T";
            bool found = ours.ContainsKey(parts[1]) && (isType || ours[parts[1]].Contains(Bare(parts[2])));
            bool isExcused = types.Contains(parts[1]) || (!isType && members.Contains(member));
            if (!found && !isExcused)
            {
                missing.Add(isType ? parts[1] : member);
            }
            if (found && (isType ? types.Contains(parts[1]) : members.Remove(member)))
            {
                missing.Add("listed as absent, and there: " + member);
            }
            members.Remove(member);
        }
        missing.AddRange(members.Select(member => "listed as absent, and not in the reference: " + member));
        Assert.That(string.Join("\n", missing), Is.Empty);
    }

    private static string[] Lines(string variable)
    {
        return File.ReadAllLines(Environment.GetEnvironmentVariable(variable));
    }

    /// <summary>A member without its accessibility: what is public may be used like what is protected.</summary>
    private static string Bare(string member)
    {
        return member.Replace("protected ", "");
    }

    private static HashSet<string> Members(Type type)
    {
        var members = new HashSet<string>();
        if (type.IsEnum)
        {
            foreach (string name in Enum.GetNames(type))
            {
                members.Add(name + " = " + Convert.ToInt64(Enum.Parse(type, name)));
            }
            return members;
        }
        foreach (ConstructorInfo made in type.GetConstructors(Everything).Where(c => Reachable(c) && !c.IsStatic))
        {
            members.Add("new(" + Parameters(made.GetParameters()) + ")");
        }
        foreach (FieldInfo field in type.GetFields(Everything).Where(f => f.IsPublic || f.IsFamily))
        {
            members.Add(Static(field.IsStatic) + Name(field.FieldType) + " " + field.Name);
        }
        foreach (PropertyInfo property in type.GetProperties(Everything))
        {
            MethodInfo get = property.GetGetMethod(true), set = property.GetSetMethod(true);
            bool gets = get != null && Reachable(get), sets = set != null && Reachable(set);
            if (gets || sets)
            {
                ParameterInfo[] indices = property.GetIndexParameters();
                string accessors = " { " + (gets ? "get; " : "") + (sets ? "set; " : "") + "}";
                string start = Static((get ?? set).IsStatic) + Name(property.PropertyType) + " " + property.Name +
                    (indices.Length == 0 ? "" : "[" + Parameters(indices) + "]");
                members.Add(start + accessors);
                members.Add(start + " { get; }");  // one that can also be set serves as well
            }
        }
        foreach (MethodInfo method in type.GetMethods(Everything).Where(Reachable))
        {
            string generic = method.IsGenericMethod
                ? "<" + string.Join(",", method.GetGenericArguments().Select(a => a.Name)) + ">"
                : "";
            members.Add(Static(method.IsStatic) + Name(method.ReturnType) + " " + method.Name + generic + "(" +
                Parameters(method.GetParameters()) + ")");
        }
        return members;
    }

    private static bool Reachable(MethodBase method)
    {
        return method.IsPublic || method.IsFamily || method.IsFamilyOrAssembly;
    }

    private static string Static(bool isStatic)
    {
        return isStatic ? "static " : "";
    }

    private static string Parameters(IEnumerable<ParameterInfo> parameters)
    {
        return string.Join(", ", parameters.Select(p => Name(p.ParameterType) + (p.IsOptional ? " =" : "")));
    }

    private static string Short(Type type)
    {
        return type.FullName.StartsWith(Root) ? type.FullName.Substring(Root.Length) : type.FullName;
    }

    private static string Name(Type type)
    {
        if (Keywords.ContainsKey(type))
        {
            return Keywords[type];
        }
        if (type.IsByRef)
        {
            return "ref " + Name(type.GetElementType());
        }
        if (type.IsArray)
        {
            return Name(type.GetElementType()) + "[]";
        }
        if (!type.IsGenericType)
        {
            return type.Name;
        }
        IEnumerable<string> arguments = type.GetGenericArguments().Select(Name);
        return type.Name.Split('`')[0] + "<" + string.Join(",", arguments) + ">";
    }
}
