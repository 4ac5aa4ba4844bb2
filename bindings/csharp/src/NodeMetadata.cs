using System;
using System.Collections.Generic;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The type that a model declares for an input or output.</summary>
    public sealed class NodeMetadata
    {
        private readonly TensorTypeAndShape tensor;
        private readonly NodeMetadata element;
        private readonly TensorElementType key;

        private NodeMetadata(OnnxValueType kind, TensorTypeAndShape tensor)
        {
            OnnxValueType = kind;
            this.tensor = tensor;
        }

        private NodeMetadata(
            OnnxValueType kind, NodeMetadata element, TensorElementType key = TensorElementType.Undefined)
            : this(kind, new TensorTypeAndShape(TensorElementType.Undefined, new int[0], new string[0]))
        {
            this.element = element;
            this.key = key;
        }

        /// <summary>Returns the type of an input or output by index.</summary>
        internal delegate IntPtr TypeCall(UIntPtr index, out IntPtr type);

        /// <summary>The kind of the value.</summary>
        public OnnxValueType OnnxValueType { get; }

        /// <summary>Whether the value is a dense tensor.</summary>
        public bool IsTensor => OnnxValueType == OnnxValueType.ONNX_TYPE_TENSOR;

        /// <summary>Whether the elements are strings.</summary>
        public bool IsString => ElementDataType == TensorElementType.String;

        /// <summary>Type of the elements.</summary>
        public TensorElementType ElementDataType => tensor.ElementDataType;

        /// <summary>Type of the elements in C#; null if C# has no such type.</summary>
        public Type ElementType => TensorTypes.TypeOf(ElementDataType);

        /// <summary>The dimensions, with -1 for unknown dimensions; empty for a scalar.</summary>
        public int[] Dimensions => tensor.Dimensions;

        /// <summary>For each dimension, its name in the model; empty if the dimension has no name.</summary>
        public string[] SymbolicDimensions => tensor.SymbolicDimensions;

        /// <summary>The elements of a sequence.</summary>
        /// <returns>The declared type of the elements.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the value has another kind.</exception>
        public SequenceMetadata AsSequenceMetadata()
        {
            Require(OnnxValueType.ONNX_TYPE_SEQUENCE, nameof(AsSequenceMetadata));
            return new SequenceMetadata(element);
        }

        /// <summary>The keys and values of a map.</summary>
        /// <returns>The declared types of the keys and the values.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the value has another kind.</exception>
        public MapMetadata AsMapMetadata()
        {
            Require(OnnxValueType.ONNX_TYPE_MAP, nameof(AsMapMetadata));
            return new MapMetadata(key, element);
        }

        /// <summary>The type of the value that an optional value may contain.</summary>
        /// <returns>The declared type of the value.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the value has another kind.</exception>
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
                all.Add(names[i], Take(info));
            }
            return all;
        }

        private static unsafe NodeMetadata Read(IntPtr info)
        {
            NativeStatus.ThrowOnError(OrtApi.GetOnnxTypeFromTypeInfo(info, out OnnxValueType kind));
            switch (kind)
            {
                case OnnxValueType.ONNX_TYPE_SEQUENCE:
                    NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToSequenceTypeInfo(info, out IntPtr sequence));
                    NativeStatus.ThrowOnError(OrtApi.GetSequenceElementType(sequence, out IntPtr item));
                    return new NodeMetadata(kind, Take(item));
                case OnnxValueType.ONNX_TYPE_OPTIONAL:
                    NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToOptionalTypeInfo(info, out IntPtr optional));
                    NativeStatus.ThrowOnError(OrtApi.GetOptionalContainedTypeInfo(optional, out IntPtr held));
                    return new NodeMetadata(kind, Take(held));
                case OnnxValueType.ONNX_TYPE_MAP:
                    NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToMapTypeInfo(info, out IntPtr map));
                    NativeStatus.ThrowOnError(OrtApi.GetMapKeyType(map, out TensorElementType keys));
                    NativeStatus.ThrowOnError(OrtApi.GetMapValueType(map, out IntPtr values));
                    return new NodeMetadata(kind, Take(values), keys);
            }
            NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToTensorInfo(info, out IntPtr native));
            if (native == IntPtr.Zero)
            {
                return new NodeMetadata(kind, element: null);
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
            int[] dimensions = Array.ConvertAll(tensor.Shape, dimension => checked((int)dimension));
            return new NodeMetadata(kind, new TensorTypeAndShape(tensor.ElementDataType, dimensions, names));
        }

        /// <summary>Reads a native description and releases it.</summary>
        private static NodeMetadata Take(IntPtr info)
        {
            try
            {
                return Read(info);
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

    /// <summary>The type that a model declares for a sequence.</summary>
    public class SequenceMetadata
    {
        internal SequenceMetadata(NodeMetadata element)
        {
            ElementMeta = element;
        }

        /// <summary>The type of its elements.</summary>
        public NodeMetadata ElementMeta { get; }
    }

    /// <summary>The type that a model declares for a map.</summary>
    public class MapMetadata
    {
        internal MapMetadata(TensorElementType keyDataType, NodeMetadata valueMetadata)
        {
            KeyDataType = keyDataType;
            ValueMetadata = valueMetadata;
        }

        /// <summary>Type of its keys.</summary>
        public TensorElementType KeyDataType { get; }

        /// <summary>The type of its values.</summary>
        public NodeMetadata ValueMetadata { get; }
    }

    /// <summary>The type that a model declares for an optional value.</summary>
    public class OptionalMetadata
    {
        internal OptionalMetadata(NodeMetadata element)
        {
            ElementMeta = element;
        }

        /// <summary>The type of the value that the optional value may contain.</summary>
        public NodeMetadata ElementMeta { get; }
    }
}
