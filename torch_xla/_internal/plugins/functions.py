"""The functions of a PJRT plugin that this package calls, by their places in its table."""

from __future__ import annotations

from typing import NamedTuple


class Function(NamedTuple):
    """A function of PJRT_Api. ``without``: what a plugin without it lacks; None: everything."""

    slot: int
    name: str
    without: str | None


_CACHE = "programs are compiled again by each process"
_INSIGHT = "compiled programs say less of themselves"
_SHARING = "DLPack copies"
_TOPOLOGY = "no programs for devices that are not there"

FUNCTIONS = (
    Function(0, "PJRT_Error_Destroy", None),
    Function(1, "PJRT_Error_Message", None),
    Function(2, "PJRT_Error_GetCode", None),
    Function(3, "PJRT_Plugin_Initialize", "nothing is missed"),
    Function(
        4, "PJRT_Plugin_Attributes", "programs on disk do not tell its versions apart by them"
    ),
    Function(5, "PJRT_Event_Destroy", None),
    Function(8, "PJRT_Event_Await", None),
    Function(9, "PJRT_Event_OnReady", None),
    Function(10, "PJRT_Client_Create", None),
    Function(11, "PJRT_Client_Destroy", None),
    Function(12, "PJRT_Client_PlatformName", None),
    Function(14, "PJRT_Client_PlatformVersion", None),
    Function(15, "PJRT_Client_Devices", None),
    Function(16, "PJRT_Client_AddressableDevices", None),
    Function(20, "PJRT_Client_Compile", None),
    Function(22, "PJRT_Client_BufferFromHostBuffer", None),
    Function(23, "PJRT_DeviceDescription_Id", None),
    Function(24, "PJRT_DeviceDescription_ProcessIndex", None),
    Function(
        25, "PJRT_DeviceDescription_Attributes", "meshes do not follow how devices are connected"
    ),
    Function(26, "PJRT_DeviceDescription_Kind", None),
    Function(27, "PJRT_DeviceDescription_DebugString", None),
    Function(29, "PJRT_Device_GetDescription", None),
    Function(31, "PJRT_Device_LocalHardwareId", "devices are numbered in their order"),
    Function(34, "PJRT_Device_MemoryStats", "no figures of device memory"),
    Function(40, "PJRT_Executable_Destroy", None),
    Function(41, "PJRT_Executable_Name", None),
    Function(44, "PJRT_Executable_NumOutputs", None),
    Function(46, "PJRT_Executable_GetCostAnalysis", _INSIGHT),
    Function(48, "PJRT_Executable_OptimizedProgram", _INSIGHT),
    Function(49, "PJRT_Executable_Serialize", _CACHE),
    Function(50, "PJRT_LoadedExecutable_Destroy", None),
    Function(51, "PJRT_LoadedExecutable_GetExecutable", None),
    Function(52, "PJRT_LoadedExecutable_AddressableDevices", None),
    Function(55, "PJRT_LoadedExecutable_Execute", None),
    Function(56, "PJRT_Executable_DeserializeAndLoad", _CACHE),
    Function(58, "PJRT_Buffer_Destroy", None),
    Function(59, "PJRT_Buffer_ElementType", None),
    Function(60, "PJRT_Buffer_Dimensions", None),
    Function(63, "PJRT_Buffer_GetMemoryLayout", _SHARING),
    Function(68, "PJRT_Buffer_IsDeleted", None),
    Function(70, "PJRT_Buffer_ToHostBuffer", None),
    Function(72, "PJRT_Buffer_ReadyEvent", None),
    Function(74, "PJRT_Buffer_IncreaseExternalReferenceCount", _SHARING),
    Function(75, "PJRT_Buffer_DecreaseExternalReferenceCount", _SHARING),
    Function(76, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer", _SHARING),
    Function(82, "PJRT_TopologyDescription_Create", _TOPOLOGY),
    Function(83, "PJRT_TopologyDescription_Destroy", _TOPOLOGY),
    Function(84, "PJRT_TopologyDescription_PlatformName", _TOPOLOGY),
    Function(85, "PJRT_TopologyDescription_PlatformVersion", _TOPOLOGY),
    Function(86, "PJRT_TopologyDescription_GetDeviceDescriptions", _TOPOLOGY),
    Function(89, "PJRT_Compile", _TOPOLOGY),
    Function(90, "PJRT_Executable_OutputElementTypes", _INSIGHT),
    Function(91, "PJRT_Executable_OutputDimensions", _INSIGHT),
    Function(93, "PJRT_Client_CreateViewOfDeviceBuffer", _SHARING),
    Function(95, "PJRT_Client_TopologyDescription", _TOPOLOGY),
    Function(96, "PJRT_Executable_GetCompiledMemoryStats", _INSIGHT),
    Function(134, "PJRT_Executable_ParameterMemoryKinds", _INSIGHT),
)
