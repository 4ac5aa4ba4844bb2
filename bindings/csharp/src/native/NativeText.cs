using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Null-terminated strings, the form that C calls take and return.</summary>
    internal static unsafe class NativeText
    {
        /// <summary>Returns the number of names.</summary>
        internal delegate IntPtr CountCall(out UIntPtr count);

        /// <summary>Returns a name by index.</summary>
        internal delegate IntPtr NameCall(UIntPtr index, out IntPtr name);

        // A string that is not valid UTF-16 is rejected rather than changed.
        internal static readonly UTF8Encoding Strict = new UTF8Encoding(false, true);
        private static readonly UnicodeEncoding StrictWide = new UnicodeEncoding(false, false, true);

        private static readonly bool PathsAreWide = RuntimeInformation.IsOSPlatform(OSPlatform.Windows);

        /// <summary>A string in UTF-8.</summary>
        internal static byte[] Utf8(string text, string name)
        {
            Check(text, name);
            var bytes = new byte[Strict.GetByteCount(text) + 1];
            Strict.GetBytes(text, 0, text.Length, bytes, 0);
            return bytes;
        }

        /// <summary>The string of UTF-8 bytes that end with a zero.</summary>
        internal static string OfUtf8(byte[] bytes, string name)
        {
            int end = Array.IndexOf(Arguments.NotNull(bytes, name), (byte)0);
            if (end < 0)
            {
                throw new ArgumentException("expected bytes with a zero at the end, found none", name);
            }
            return Encoding.UTF8.GetString(bytes, 0, end);
        }

        /// <summary>A path in the encoding of the file system.</summary>
        internal static byte[] Path(string path, string name)
        {
            if (!PathsAreWide)
            {
                return Utf8(path, name);
            }
            Check(path, name);
            return StrictWide.GetBytes(path + "\0");
        }

        /// <summary>A path in the encoding of the file system; null for null.</summary>
        internal static byte[] PathOrNull(string path, string name)
        {
            return path == null ? null : Path(path, name);
        }

        /// <summary>The string at an address; null for a null address.</summary>
        internal static string Read(IntPtr text)
        {
            if (text == IntPtr.Zero)
            {
                return null;
            }
            var start = (byte*)text;
            int length = 0;
            while (start[length] != 0)
            {
                ++length;
            }
            return Encoding.UTF8.GetString(start, length);
        }

        /// <summary>The string at an address, which is freed.</summary>
        internal static string Take(IntPtr text)
        {
            try
            {
                return Read(text);
            }
            finally
            {
                NativeMemory.Free(text);
            }
        }

        /// <summary>All names of a kind.</summary>
        internal static List<string> ReadAll(CountCall countCall, NameCall nameCall)
        {
            NativeStatus.ThrowOnError(countCall(out UIntPtr count));
            var names = new List<string>((int)count);
            for (ulong i = 0; i < (ulong)count; ++i)
            {
                NativeStatus.ThrowOnError(nameCall((UIntPtr)i, out IntPtr name));
                names.Add(Take(name));
            }
            return names;
        }

        private static void Check(string text, string name)
        {
            Arguments.NotNull(text, name);
            int zero = text.IndexOf('\0');
            if (zero >= 0)
            {
                throw new ArgumentException(
                    "expected a string without null characters, found one at position " + zero, name);
            }
        }
    }
}
