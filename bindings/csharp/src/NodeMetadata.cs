using System;
using System.Collections.Generic;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>What a model declares about an input or output.</summary>
    public sealed class NodeMetadata
    {
        private NodeMetadata(OnnxValueType kind, TensorElementType type, long[] shape, string[] symbols)
        {
            OnnxValueType = kind;
            ElementDataType = type;
            Dimensions = Array.ConvertAll(shape, extent => checked((int)extent));
            SymbolicDimensions = symbols;
        }

        /// <summary>Returns the type of an input or output by index.</summary>
        internal delegate IntPtr TypeCall(UIntPtr index, out IntPtr type);

        /// <summary>The kind of the value.</summary>
        public OnnxValueType OnnxValueType { get; }

        /// <summary>Whether it is a dense tensor.</summary>
        public bool IsTensor => OnnxValueType == OnnxValueType.ONNX_TYPE_TENSOR;

        /// <summary>Whether the elements are strings, which are not supported.</summary>
        public bool IsString => ElementDataType == TensorElementType.String;

        /// <summary>Type of the elements.</summary>
        public TensorElementType ElementDataType { get; }

        /// <summary>Type of the elements in C#, null if C# has none.</summary>
        public Type ElementType => TensorTypes.TypeOf(ElementDataType);

        /// <summary>The dimensions, -1 for unknown ones; none for a scalar.</summary>
        public int[] Dimensions { get; }

        /// <summary>For each dimension its name in the model, empty if it has none.</summary>
        public string[] SymbolicDimensions { get; }

        /// <summary>All inputs or outputs by name.</summary>
        internal static IReadOnlyDictionary<string, NodeMetadata> ReadAll(
            NativeText.CountCall count, NativeText.NameCall name, TypeCall type)
        {
            List<string> names = NativeText.ReadAll(count, name);
            var all = new Dictionary<string, NodeMetadata>(names.Count);
            for (int i = 0; i < names.Count; ++i)
            {
                NativeStatus.ThrowOnError(type((UIntPtr)i, out IntPtr info));
                try
                {
                    all.Add(names[i], Read(info));
                }
                finally
                {
                    OrtApi.ReleaseTypeInfo(info);
                }
            }
            return all;
        }

        private static unsafe NodeMetadata Read(IntPtr info)
        {
            NativeStatus.ThrowOnError(OrtApi.GetOnnxTypeFromTypeInfo(info, out OnnxValueType kind));
            NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToTensorInfo(info, out IntPtr native));
            if (native == IntPtr.Zero)
            {
                return new NodeMetadata(kind, TensorElementType.Undefined, new long[0], new string[0]);
            }
            OrtTensorTypeAndShapeInfo tensor = OrtTensorTypeAndShapeInfo.Read(native);
            var symbols = new IntPtr[tensor.Shape.Length + 1];
            fixed (IntPtr* first = symbols)
            {
                NativeStatus.ThrowOnError(
                    OrtApi.GetSymbolicDimensions(native, first, (UIntPtr)tensor.Shape.Length));
            }
            var names = new string[tensor.Shape.Length];
            for (int i = 0; i < names.Length; ++i)
            {
                names[i] = NativeText.Read(symbols[i]);
            }
            return new NodeMetadata(kind, tensor.ElementDataType, tensor.Shape, names);
        }
    }
}
