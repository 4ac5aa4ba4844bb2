using System;
using System.Collections.Generic;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The C# types of tensor elements.</summary>
    internal static class TensorTypes
    {
        /// <summary>The C# type of an element type; null if there is none.</summary>
        internal static Type TypeOf(TensorElementType type)
        {
            switch (type)
            {
                case TensorElementType.Float: return typeof(float);
                case TensorElementType.Double: return typeof(double);
                case TensorElementType.Int64: return typeof(long);
                case TensorElementType.Int32: return typeof(int);
                case TensorElementType.Int16: return typeof(short);
                case TensorElementType.Int8: return typeof(sbyte);
                case TensorElementType.UInt64: return typeof(ulong);
                case TensorElementType.UInt32: return typeof(uint);
                case TensorElementType.UInt16: return typeof(ushort);
                case TensorElementType.UInt8: return typeof(byte);
                case TensorElementType.Bool: return typeof(bool);
                case TensorElementType.Float16: return typeof(Float16);
                case TensorElementType.BFloat16: return typeof(BFloat16);
                case TensorElementType.String: return typeof(string);
                default: return null;
            }
        }

        /// <summary>The element type of a C# type; Undefined if there is none.</summary>
        internal static TensorElementType Find(Type type)
        {
            if (type == typeof(float)) return TensorElementType.Float;
            if (type == typeof(double)) return TensorElementType.Double;
            if (type == typeof(long)) return TensorElementType.Int64;
            if (type == typeof(int)) return TensorElementType.Int32;
            if (type == typeof(short)) return TensorElementType.Int16;
            if (type == typeof(sbyte)) return TensorElementType.Int8;
            if (type == typeof(ulong)) return TensorElementType.UInt64;
            if (type == typeof(uint)) return TensorElementType.UInt32;
            if (type == typeof(ushort)) return TensorElementType.UInt16;
            if (type == typeof(byte)) return TensorElementType.UInt8;
            if (type == typeof(bool)) return TensorElementType.Bool;
            if (type == typeof(Float16)) return TensorElementType.Float16;
            if (type == typeof(BFloat16)) return TensorElementType.BFloat16;
            return TensorElementType.Undefined;
        }

        /// <summary>The element type of the .NET type T; throws if there is none.</summary>
        internal static TensorElementType Of<T>(string method)
        {
            TensorElementType type = TensorType<T>.Value;
            if (type == TensorElementType.Undefined)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument,
                    method + ": no tensor has elements of type " + typeof(T).Name + ", expected one of float, " +
                    "double, sbyte, short, int, long, byte, ushort, uint, ulong, bool, Float16, BFloat16");
            }
            return type;
        }

        /// <summary>Throws unless elements of a type can be read as T.</summary>
        internal static void Require<T>(TensorElementType found, string method)
        {
            if (TensorType<T>.Value != found || found == TensorElementType.Undefined)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument,
                    method + "<" + typeof(T).Name + ">: the tensor's elements are of type " + found +
                    ", expected the C# type of such elements");
            }
        }

        /// <summary>Size of an element in bytes; 0 for types that are not supported.</summary>
        internal static int Size(TensorElementType type)
        {
            switch (type)
            {
                case TensorElementType.UInt8:
                case TensorElementType.Int8:
                case TensorElementType.Bool:
                    return 1;
                case TensorElementType.UInt16:
                case TensorElementType.Int16:
                case TensorElementType.Float16:
                case TensorElementType.BFloat16:
                    return 2;
                case TensorElementType.Float:
                case TensorElementType.Int32:
                case TensorElementType.UInt32:
                    return 4;
                case TensorElementType.Double:
                case TensorElementType.Int64:
                case TensorElementType.UInt64:
                    return 8;
                default:
                    return 0;
            }
        }

        /// <summary>A C# tensor that shares a value's memory; the elements of a sequence; a dictionary with the
        /// pairs of a map.</summary>
        internal static object View(OrtValue value)
        {
            switch (value.OnnxType)
            {
                case OnnxValueType.ONNX_TYPE_SEQUENCE: return Elements(value);
                case OnnxValueType.ONNX_TYPE_MAP: return Pairs(value);
            }
            TensorElementType type = value.Info.ElementDataType;
            switch (type)
            {
                case TensorElementType.Float: return View<float>(value);
                case TensorElementType.Double: return View<double>(value);
                case TensorElementType.Int64: return View<long>(value);
                case TensorElementType.Int32: return View<int>(value);
                case TensorElementType.Int16: return View<short>(value);
                case TensorElementType.Int8: return View<sbyte>(value);
                case TensorElementType.UInt64: return View<ulong>(value);
                case TensorElementType.UInt32: return View<uint>(value);
                case TensorElementType.UInt16: return View<ushort>(value);
                case TensorElementType.UInt8: return View<byte>(value);
                case TensorElementType.Bool: return View<bool>(value);
                case TensorElementType.Float16: return View<Float16>(value);
                case TensorElementType.BFloat16: return View<BFloat16>(value);
                case TensorElementType.String:
                    return new DenseTensor<string>(value.GetStringTensorAsArray(), Dimensions(value));
                default:
                    throw new OnnxRuntimeException(
                        ErrorCode.NotImplemented, "a tensor with elements of type " + type + " has no C# type");
            }
        }

        /// <summary>A value over the memory of a C# tensor.</summary>
        internal static OrtValue Over<T>(Memory<T> memory, long[] shape)
        {
            // Generic code cannot express that T is numeric; here it is known.
            object boxed = memory;
            switch (Of<T>("CreateFromTensor"))
            {
                case TensorElementType.Float: return OverNumbers((Memory<float>)boxed, shape);
                case TensorElementType.Double: return OverNumbers((Memory<double>)boxed, shape);
                case TensorElementType.Int64: return OverNumbers((Memory<long>)boxed, shape);
                case TensorElementType.Int32: return OverNumbers((Memory<int>)boxed, shape);
                case TensorElementType.Int16: return OverNumbers((Memory<short>)boxed, shape);
                case TensorElementType.Int8: return OverNumbers((Memory<sbyte>)boxed, shape);
                case TensorElementType.UInt64: return OverNumbers((Memory<ulong>)boxed, shape);
                case TensorElementType.UInt32: return OverNumbers((Memory<uint>)boxed, shape);
                case TensorElementType.UInt16: return OverNumbers((Memory<ushort>)boxed, shape);
                case TensorElementType.UInt8: return OverNumbers((Memory<byte>)boxed, shape);
                case TensorElementType.Bool: return OverNumbers((Memory<bool>)boxed, shape);
                case TensorElementType.Float16: return OverNumbers((Memory<Float16>)boxed, shape);
                default: return OverNumbers((Memory<BFloat16>)boxed, shape);
            }
        }

        private static DenseTensor<T> View<T>(OrtValue value)
            where T : struct
        {
            return new DenseTensor<T>(new OrtValueMemory<T>(value).Memory, Dimensions(value));
        }

        private static int[] Dimensions(OrtValue value)
        {
            return Array.ConvertAll(value.Info.Shape, dimension => checked((int)dimension));
        }

        /// <summary>The elements of a sequence, without names.</summary>
        private static DisposableList<DisposableNamedOnnxValue> Elements(OrtValue value)
        {
            int count = value.GetValueCount();
            var elements = new DisposableList<DisposableNamedOnnxValue>(count);
            for (int i = 0; i < count; ++i)
            {
                OrtValue element = value.GetValue(i, OrtAllocator.DefaultInstance);
                elements.Add(DisposableNamedOnnxValue.CreateFromOrtValue("", element));
            }
            return elements;
        }

        private static object Pairs(OrtValue map)
        {
            using (OrtValue keys = map.GetValue(0, OrtAllocator.DefaultInstance))
            using (OrtValue values = map.GetValue(1, OrtAllocator.DefaultInstance))
            {
                return keys.Info.ElementDataType == TensorElementType.String
                    ? Pairs(keys.GetStringTensorAsArray(), values)
                    : Pairs(keys.GetTensorDataAsSpan<long>().ToArray(), values);
            }
        }

        private static object Pairs<K>(K[] keys, OrtValue values)
        {
            TensorElementType type = values.Info.ElementDataType;
            switch (type)
            {
                case TensorElementType.Float: return Pairs(keys, values.GetTensorDataAsSpan<float>().ToArray());
                case TensorElementType.Double: return Pairs(keys, values.GetTensorDataAsSpan<double>().ToArray());
                case TensorElementType.Int64: return Pairs(keys, values.GetTensorDataAsSpan<long>().ToArray());
                case TensorElementType.String: return Pairs(keys, values.GetStringTensorAsArray());
                default:
                    throw new OnnxRuntimeException(
                        ErrorCode.NotImplemented, "a map to values of type " + type + " has no C# type");
            }
        }

        private static Dictionary<K, V> Pairs<K, V>(K[] keys, V[] values)
        {
            var pairs = new Dictionary<K, V>(keys.Length);
            for (int i = 0; i < keys.Length; ++i)
            {
                pairs[keys[i]] = values[i];
            }
            return pairs;
        }

        private static OrtValue OverNumbers<T>(Memory<T> memory, long[] shape)
            where T : struct
        {
            return OrtValue.CreateTensorValueFromMemory(OrtMemoryInfo.DefaultInstance, memory, shape);
        }

        private static class TensorType<T>
        {
            internal static readonly TensorElementType Value = Find(typeof(T));
        }
    }
}
