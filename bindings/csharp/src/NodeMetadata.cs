using System;
using System.Collections.Generic;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>What a model declares about an input or output.</summary>
    public sealed class NodeMetadata
    {
        private readonly NodeMetadata element;

        private NodeMetadata(
            OnnxValueType kind, TensorElementType type, long[] shape, string[] symbols, NodeMetadata element = null)
        {
            this.element = element;
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

        /// <summary>Whether the elements are strings.</summary>
        public bool IsString => ElementDataType == TensorElementType.String;

        /// <summary>Type of the elements.</summary>
        public TensorElementType ElementDataType { get; }

        /// <summary>Type of the elements in C#, null if C# has none.</summary>
        public Type ElementType => TensorTypes.TypeOf(ElementDataType);

        /// <summary>The dimensions, -1 for unknown ones; none for a scalar.</summary>
        public int[] Dimensions { get; }

        /// <summary>For each dimension its name in the model, empty if it has none.</summary>
        public string[] SymbolicDimensions { get; }

        /// <summary>The elements of a sequence.</summary>
        /// <returns>What the model declares about them.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument for another kind.</exception>
        public SequenceMetadata AsSequenceMetadata()
        {
            Require(OnnxValueType.ONNX_TYPE_SEQUENCE, nameof(AsSequenceMetadata));
            return new SequenceMetadata(element);
        }

        /// <summary>What an optional value may hold.</summary>
        /// <returns>What the model declares about it.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument for another kind.</exception>
        public OptionalMetadata AsOptionalMetadata()
        {
            Require(OnnxValueType.ONNX_TYPE_OPTIONAL, nameof(AsOptionalMetadata));
            return new OptionalMetadata(element);
        }

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
            if (kind == OnnxValueType.ONNX_TYPE_SEQUENCE)
            {
                NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToSequenceTypeInfo(info, out IntPtr sequence));
                NativeStatus.ThrowOnError(OrtApi.GetSequenceElementType(sequence, out IntPtr item));
                return Around(kind, item);
            }
            if (kind == OnnxValueType.ONNX_TYPE_OPTIONAL)
            {
                NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToOptionalTypeInfo(info, out IntPtr optional));
                NativeStatus.ThrowOnError(OrtApi.GetOptionalContainedTypeInfo(optional, out IntPtr held));
                return Around(kind, held);
            }
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

        /// <summary>A kind of value around another, whose description is released.</summary>
        private static NodeMetadata Around(OnnxValueType kind, IntPtr info)
        {
            try
            {
                return new NodeMetadata(
                    kind, TensorElementType.Undefined, new long[0], new string[0], Read(info));
            }
            finally
            {
                OrtApi.ReleaseTypeInfo(info);
            }
        }

        private void Require(OnnxValueType expected, string method)
        {
            if (OnnxValueType != expected)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument,
                    method + ": the value is of kind " + OnnxValueType + ", expected " + expected);
            }
        }
    }

    /// <summary>What a model declares about a sequence.</summary>
    public class SequenceMetadata
    {
        internal SequenceMetadata(NodeMetadata element)
        {
            ElementMeta = element;
        }

        /// <summary>Its elements.</summary>
        public NodeMetadata ElementMeta { get; }
    }

    /// <summary>What a model declares about an optional value.</summary>
    public class OptionalMetadata
    {
        internal OptionalMetadata(NodeMetadata element)
        {
            ElementMeta = element;
        }

        /// <summary>What it may hold.</summary>
        public NodeMetadata ElementMeta { get; }
    }
}
