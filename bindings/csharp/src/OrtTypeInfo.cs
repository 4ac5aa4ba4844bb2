using System;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The kind of a value, and the types of its parts.</summary>
    /// <remarks>Only the part for this kind exists; reading another part throws.</remarks>
    public class OrtTypeInfo
    {
        private readonly OrtTensorTypeAndShapeInfo tensor;
        private readonly OrtSequenceOrOptionalTypeInfo element;
        private readonly OrtMapTypeInfo map;

        private OrtTypeInfo(
            OnnxValueType kind, OrtTensorTypeAndShapeInfo tensor = default(OrtTensorTypeAndShapeInfo),
            OrtSequenceOrOptionalTypeInfo element = default(OrtSequenceOrOptionalTypeInfo),
            OrtMapTypeInfo map = default(OrtMapTypeInfo))
        {
            OnnxType = kind;
            this.tensor = tensor;
            this.element = element;
            this.map = map;
        }

        /// <summary>The kind.</summary>
        public OnnxValueType OnnxType { get; }

        /// <summary>Element type and dimensions of a tensor.</summary>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the value has another kind.</exception>
        public OrtTensorTypeAndShapeInfo TensorTypeAndShapeInfo
        {
            get
            {
                Require(OnnxType == OnnxValueType.ONNX_TYPE_SPARSETENSOR ? OnnxType : OnnxValueType.ONNX_TYPE_TENSOR);
                return tensor;
            }
        }

        /// <summary>Type of the elements of a sequence.</summary>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the value has another kind.</exception>
        public OrtSequenceOrOptionalTypeInfo SequenceTypeInfo
        {
            get
            {
                Require(OnnxValueType.ONNX_TYPE_SEQUENCE);
                return element;
            }
        }

        /// <summary>Type of the value that an optional value may contain.</summary>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the value has another kind.</exception>
        public OrtSequenceOrOptionalTypeInfo OptionalTypeInfo
        {
            get
            {
                Require(OnnxValueType.ONNX_TYPE_OPTIONAL);
                return element;
            }
        }

        /// <summary>Types of the keys and values of a map.</summary>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the value has another kind.</exception>
        public OrtMapTypeInfo MapTypeInfo
        {
            get
            {
                Require(OnnxValueType.ONNX_TYPE_MAP);
                return map;
            }
        }

        /// <summary>The contents of a native description, which stays with its owner.</summary>
        internal static OrtTypeInfo Read(IntPtr info)
        {
            NativeStatus.ThrowOnError(OrtApi.GetOnnxTypeFromTypeInfo(info, out OnnxValueType kind));
            switch (kind)
            {
                case OnnxValueType.ONNX_TYPE_TENSOR:
                case OnnxValueType.ONNX_TYPE_SPARSETENSOR:
                    NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToTensorInfo(info, out IntPtr tensor));
                    return new OrtTypeInfo(kind, OrtTensorTypeAndShapeInfo.Read(tensor));
                case OnnxValueType.ONNX_TYPE_SEQUENCE:
                    NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToSequenceTypeInfo(info, out IntPtr sequence));
                    NativeStatus.ThrowOnError(OrtApi.GetSequenceElementType(sequence, out IntPtr item));
                    return new OrtTypeInfo(kind, element: new OrtSequenceOrOptionalTypeInfo(Take(item)));
                case OnnxValueType.ONNX_TYPE_OPTIONAL:
                    NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToOptionalTypeInfo(info, out IntPtr optional));
                    NativeStatus.ThrowOnError(OrtApi.GetOptionalContainedTypeInfo(optional, out IntPtr held));
                    return new OrtTypeInfo(kind, element: new OrtSequenceOrOptionalTypeInfo(Take(held)));
                case OnnxValueType.ONNX_TYPE_MAP:
                    NativeStatus.ThrowOnError(OrtApi.CastTypeInfoToMapTypeInfo(info, out IntPtr map));
                    NativeStatus.ThrowOnError(OrtApi.GetMapKeyType(map, out TensorElementType keys));
                    NativeStatus.ThrowOnError(OrtApi.GetMapValueType(map, out IntPtr values));
                    return new OrtTypeInfo(kind, map: new OrtMapTypeInfo(keys, Take(values)));
                default:
                    return new OrtTypeInfo(kind);
            }
        }

        /// <summary>The contents of a native description, which is released.</summary>
        internal static OrtTypeInfo Take(IntPtr info)
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

        private void Require(OnnxValueType expected)
        {
            if (OnnxType != expected)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument, "OrtTypeInfo: the type is " + OnnxType + ", expected " + expected);
            }
        }
    }

    /// <summary>The type of the elements of a sequence, or of the value that an optional value may contain.</summary>
    public struct OrtSequenceOrOptionalTypeInfo
    {
        internal OrtSequenceOrOptionalTypeInfo(OrtTypeInfo elementType)
        {
            ElementType = elementType;
        }

        /// <summary>The type.</summary>
        public OrtTypeInfo ElementType { get; }
    }

    /// <summary>The types of the keys and values of a map.</summary>
    public struct OrtMapTypeInfo
    {
        internal OrtMapTypeInfo(TensorElementType keyType, OrtTypeInfo valueType)
        {
            KeyType = keyType;
            ValueType = valueType;
        }

        /// <summary>Type of the keys.</summary>
        public TensorElementType KeyType { get; }

        /// <summary>Type of the values.</summary>
        public OrtTypeInfo ValueType { get; }
    }
}
