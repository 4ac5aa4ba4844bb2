using System;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Memory of the caller at an address, with the type and shape of a tensor.</summary>
    public class OrtExternalAllocation
    {
        /// <summary>Describes memory.</summary>
        /// <param name="memInfo">Location of the memory.</param>
        /// <param name="shape">The dimensions of the tensor.</param>
        /// <param name="elementType">Type of its elements.</param>
        /// <param name="pointer">The memory. It must outlive the binding.</param>
        /// <param name="sizeInBytes">Size of the memory.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="memInfo"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensor needs more memory, or no tensor
        /// has such elements.</exception>
        public OrtExternalAllocation(
            OrtMemoryInfo memInfo, long[] shape, TensorElementType elementType, IntPtr pointer, long sizeInBytes)
        {
            Info = Arguments.NotNull(memInfo, nameof(memInfo));
            Shape = (long[])Arguments.NotNull(shape, nameof(shape)).Clone();
            int size = TensorTypes.Size(elementType);
            if (size == 0)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument,
                    "OrtExternalAllocation: expected elements of a numeric type, found " + elementType);
            }
            long needed = checked(ShapeUtils.GetSizeForShape(shape) * size);
            if (needed > sizeInBytes)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument,
                    "OrtExternalAllocation: the tensor takes " + needed + " bytes, expected at most the size of the " +
                    "memory, " + sizeInBytes);
            }
            ElementType = elementType;
            Pointer = pointer;
            Size = sizeInBytes;
        }

        /// <summary>Location of the memory.</summary>
        public OrtMemoryInfo Info { get; }

        /// <summary>The dimensions of the tensor.</summary>
        public long[] Shape { get; }

        /// <summary>Type of its elements.</summary>
        public TensorElementType ElementType { get; }

        /// <summary>The memory.</summary>
        public IntPtr Pointer { get; }

        /// <summary>Size of the memory, in bytes.</summary>
        public long Size { get; }

        internal OrtValue CreateOrtValue()
        {
            return OrtValue.CreateTensorValueWithData(Info, ElementType, Shape, Pointer, Size);
        }
    }
}
