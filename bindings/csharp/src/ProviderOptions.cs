using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Flags of the CoreML provider, which is not available.</summary>
    [Flags]
    public enum CoreMLFlags : uint
    {
        /// <summary>None.</summary>
        COREML_FLAG_USE_NONE = 0x000,

        /// <summary>Only the CPU.</summary>
        COREML_FLAG_USE_CPU_ONLY = 0x001,

        /// <summary>In subgraphs too.</summary>
        COREML_FLAG_ENABLE_ON_SUBGRAPH = 0x002,

        /// <summary>Only devices with a neural engine.</summary>
        COREML_FLAG_ONLY_ENABLE_DEVICE_WITH_ANE = 0x004,

        /// <summary>Only inputs whose shapes are known.</summary>
        COREML_FLAG_ONLY_ALLOW_STATIC_INPUT_SHAPES = 0x008,

        /// <summary>As an ML program.</summary>
        COREML_FLAG_CREATE_MLPROGRAM = 0x010,

        /// <summary>CPU and GPU.</summary>
        COREML_FLAG_USE_CPU_AND_GPU = 0x020,

        /// <summary>The last of the flags.</summary>
        COREML_FLAG_LAST = COREML_FLAG_USE_CPU_AND_GPU,
    }

    /// <summary>Flags of the NNAPI provider, which is not available.</summary>
    [Flags]
    public enum NnapiFlags
    {
        /// <summary>None.</summary>
        NNAPI_FLAG_USE_NONE = 0x000,

        /// <summary>In float16.</summary>
        NNAPI_FLAG_USE_FP16 = 0x001,

        /// <summary>Channels first.</summary>
        NNAPI_FLAG_USE_NCHW = 0x002,

        /// <summary>Not on the CPU.</summary>
        NNAPI_FLAG_CPU_DISABLED = 0x004,

        /// <summary>Only on the CPU.</summary>
        NNAPI_FLAG_CPU_ONLY = 0x008,

        /// <summary>The last of the flags.</summary>
        NNAPI_FLAG_LAST = NNAPI_FLAG_CPU_ONLY,
    }

    /// <summary>Reads settings of providers.</summary>
    public class ProviderOptionsValueHelper
    {
        /// <summary>Reads pairs of a string into a dictionary.</summary>
        /// <param name="s">Pairs such as <c>device_id=0;name=x</c>.</param>
        /// <param name="dict">Receives the pairs.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="System.ArgumentException">When a part is not a pair.</exception>
        public static void StringToDict(string s, Dictionary<string, string> dict)
        {
            Arguments.NotNull(dict, nameof(dict));
            foreach (string part in Arguments.NotNull(s, nameof(s)).Split(';'))
            {
                string[] pair = part.Split('=');
                if (pair.Length != 2)
                {
                    throw new ArgumentException("expected key=value between semicolons, found '" + part + "'", nameof(s));
                }
                dict[pair[0]] = pair[1];
            }
        }
    }
}
