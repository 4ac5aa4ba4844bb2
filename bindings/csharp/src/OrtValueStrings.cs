using System;
using System.Runtime.InteropServices;
using System.Text;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    public unsafe partial class OrtValue
    {
        /// <summary>Creates a tensor of strings, all of them empty.</summary>
        /// <param name="allocator">Allocates the memory.</param>
        /// <param name="shape">The dimensions; none for a scalar.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="allocator"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when a dimension is negative.</exception>
        public static OrtValue CreateTensorWithEmptyStrings(OrtAllocator allocator, long[] shape)
        {
            return CreateAllocatedTensorValue(allocator, TensorElementType.String, shape);
        }

        /// <summary>Creates a tensor of strings with the elements of a C# tensor.</summary>
        /// <param name="tensor">The tensor; null elements are rejected.</param>
        /// <returns>The tensor, with its own memory.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="tensor"/> or an element is
        /// null.</exception>
        public static OrtValue CreateFromStringTensor(Tensor<string> tensor)
        {
            Arguments.NotNull(tensor, nameof(tensor));
            OrtValue value = CreateTensorWithEmptyStrings(
                OrtAllocator.DefaultInstance, Array.ConvertAll(tensor.dimensions, dimension => (long)dimension));
            try
            {
                for (int i = 0; i < tensor.Length; ++i)
                {
                    string element = tensor.GetValue(
                        TensorShape.OffsetOfPosition(tensor.dimensions, tensor.strides, i));
                    if (element == null)
                    {
                        throw new ArgumentNullException(nameof(tensor) + "[" + i + "]");
                    }
                    value.StringTensorSetElementAt(element.AsSpan(), i);
                }
                return value;
            }
            catch
            {
                value.Dispose();
                throw;
            }
        }

        /// <summary>Sets an element of a tensor of strings.</summary>
        /// <param name="str">The text.</param>
        /// <param name="index">Number of the element in row-major order.</param>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensor has no strings, or no such
        /// element.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void StringTensorSetElementAt(ReadOnlySpan<char> str, int index)
        {
            fixed (char* text = &MemoryMarshal.GetReference(str))
            {
                int size = str.Length == 0 ? 0 : NativeText.Strict.GetByteCount(text, str.Length);
                Span<byte> room = StringRoom(index, size);
                fixed (byte* bytes = &MemoryMarshal.GetReference(room))
                {
                    if (size > 0)
                    {
                        NativeText.Strict.GetBytes(text, str.Length, bytes, size);
                    }
                }
            }
        }

        /// <summary>Sets an element of a tensor of strings.</summary>
        /// <param name="rom">The text.</param>
        /// <param name="index">Number of the element in row-major order.</param>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensor has no strings, or no such
        /// element.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void StringTensorSetElementAt(ReadOnlyMemory<char> rom, int index)
        {
            StringTensorSetElementAt(rom.Span, index);
        }

        /// <summary>Sets an element of a tensor of strings.</summary>
        /// <param name="utf8Bytes">The text in UTF-8.</param>
        /// <param name="index">Number of the element in row-major order.</param>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensor has no strings, or no such
        /// element.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void StringTensorSetElementAt(ReadOnlySpan<byte> utf8Bytes, int index)
        {
            utf8Bytes.CopyTo(StringRoom(index, utf8Bytes.Length));
        }

        /// <summary>An element of a tensor of strings.</summary>
        /// <param name="index">Number of the element in row-major order.</param>
        /// <returns>The text.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensor has no strings, or no such
        /// element.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public string GetStringElement(int index)
        {
            return Encoding.UTF8.GetString(StringBytes(index));
        }

        /// <summary>An element of a tensor of strings.</summary>
        /// <param name="index">Number of the element in row-major order.</param>
        /// <returns>A copy of the text in UTF-8.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensor has no strings, or no such
        /// element.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public ReadOnlySpan<byte> GetStringElementAsSpan(int index)
        {
            return StringBytes(index);
        }

        /// <summary>An element of a tensor of strings.</summary>
        /// <param name="index">Number of the element in row-major order.</param>
        /// <returns>A copy of the text.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensor has no strings, or no such
        /// element.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public ReadOnlyMemory<char> GetStringElementAsMemory(int index)
        {
            return GetStringElement(index).AsMemory();
        }

        /// <summary>The elements of a tensor of strings.</summary>
        /// <returns>The texts in row-major order.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensor has no strings.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public string[] GetStringTensorAsArray()
        {
            RequireStrings(nameof(GetStringTensorAsArray));
            var texts = new string[Fitting(Info.ElementCount, "elements")];
            for (int i = 0; i < texts.Length; ++i)
            {
                texts[i] = GetStringElement(i);
            }
            return texts;
        }

        private byte[] StringBytes(int index)
        {
            RequireStrings("GetStringElement");
            UIntPtr element = Arguments.Size(index, nameof(index));
            NativeStatus.ThrowOnError(OrtApi.GetStringTensorElementLength(Live, element, out UIntPtr size));
            var bytes = new byte[Fitting((long)size, "bytes in the element")];
            fixed (byte* first = bytes)
            {
                byte none = 0;
                NativeStatus.ThrowOnError(
                    OrtApi.GetStringTensorElement(Live, size, element, (IntPtr)(bytes.Length == 0 ? &none : first)));
            }
            return bytes;
        }

        private Span<byte> StringRoom(int index, int size)
        {
            RequireStrings(nameof(StringTensorSetElementAt));
            NativeStatus.ThrowOnError(OrtApi.GetResizedStringTensorElementBuffer(
                Live, Arguments.Size(index, nameof(index)), (UIntPtr)size, out IntPtr room));
            return new Span<byte>((void*)room, size);
        }

        private void RequireStrings(string method)
        {
            if (!IsTensor || Info.ElementDataType != TensorElementType.String)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument,
                    method + ": expected a tensor of strings, found " + (IsTensor ? Info.ToString() : OnnxType.ToString()));
            }
        }
    }
}
